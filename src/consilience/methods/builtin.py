"""The built-in methods. Each is a function of its settings; `consilience methods` lists its docstring's first line."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import wraps
from typing import Any, Literal, get_args

from consilience.config.schedules import Rate, Schedule, constant_number, number_or_schedule
from consilience.errors import UnknownName
from consilience.exchanges import (
    Clusters,
    Exchange,
    Gradients,
    Logits,
    Observations,
    Prototypes,
    SeenObservations,
    Similarity,
    Weights,
)
from consilience.exchanges.base import Start
from consilience.exchanges.class_means import Scale
from consilience.exchanges.dimensions import Subspace
from consilience.exchanges.gradients import Inner
from consilience.exchanges.observations import Discriminator
from consilience.exchanges.similarity import Form
from consilience.exchanges.weights import Buffers
from consilience.functional.group_means import Weighting
from consilience.method import DevicePart, Method, Role, Turns
from consilience.methods.registry import register_method, reserve_names
from consilience.objectives import Augmented, TwoStage, build_objective
from consilience.task import DEVICE, SERVER, TRAINED
from consilience.validation import check_choice, check_integer
from consilience.wire.encodings import BIT, ENCODINGS, FLOAT16, Encoding

Distill = Literal["distiller", "learner"]
Means = Literal["global", "seen"]
"""Toward which class means features are pulled: of all learners, or of the observations that a learner has seen."""
Device = Literal["private", "1bit"]
"""What happens to the device's part of a model: it stays private, or is shared at one bit per weight."""


@register_method
def centralized(objective: str = "cross-entropy", own_head: bool = False) -> Method:
    """One learner holds all data: the yardstick, not a federation."""
    return Method("centralized", {"learner": Role(build_objective(objective, own_head))}, pooled=True)


@register_method
def independent(objective: str = "cross-entropy", own_head: bool = False, batch_order: int = 0) -> Role:
    """Every learner trains alone."""
    return Role(build_objective(objective, own_head), batch_order=batch_order)


@register_method
def self_distillation(
    kd: Rate = 10.0,
    contrast: Rate = 1.0,
    n_avg: int = 10,
    objective: str = "cross-entropy",
    own_head: bool = False,
) -> Role:
    """Representation sharing of each learner with itself only: the control for mere regularization."""
    exchanges = _representations(kd, Observations(weight=contrast, n_avg=n_avg, scope="oneself"))
    return Role(build_objective(objective, own_head), exchanges, optional=("observations",))


@register_method
def federated_distillation(
    kd: Rate = 10.0, encoding: str = "float32", weighting: Weighting = "samples"
) -> tuple[Exchange, ...]:
    """Mean logits of each class, distilled (Jeong et al. 2018)."""
    return (Logits(weight=kd, encoding=_encoding(encoding), weighting=weighting),)


@register_method
def fedavg(
    start: Start = "common",
    part: str = TRAINED,
    every: int = 1,
    buffers: Buffers = "share",
    up: str = "float32",
    down: str = "float32",
    step: float = 1.0,
    objective: str = "cross-entropy",
    own_head: bool = False,
    own_model: bool = False,
) -> Role:
    """The mean of all learners' weights (McMahan et al. 2017)."""
    shared = Weights(
        part=part, every=every, buffers=buffers, start=start, up=_encoding(up), down=_encoding(down), step=step
    )
    return Role(build_objective(objective, own_head, own_model), (shared,))


@register_method
def fedprox(
    mu: Rate = 0.01,
    start: Start = "common",
    part: str = TRAINED,
    every: int = 1,
    up: str = "float32",
    down: str = "float32",
    step: float = 1.0,
    objective: str = "cross-entropy",
    own_head: bool = False,
    own_model: bool = False,
) -> Role:
    """FedAvg with training held near the common weights (Li et al. 2020)."""
    number_or_schedule("mu", mu)
    shared = Weights(part=part, every=every, start=start, prox=mu, up=_encoding(up), down=_encoding(down), step=step)
    return Role(build_objective(objective, own_head, own_model), (shared,))


@register_method
def fedproto(
    kd: Rate = 10.0,
    encoding: str = "float32",
    weighting: Weighting = "samples",
    dimensions: float = 1.0,
    subspace: Subspace = "first",
    objective: str = "cross-entropy",
    own_head: bool = False,
) -> Role:
    """Mean features of each class, distilled (Tan et al. 2022)."""
    shared = Prototypes(
        weight=kd, encoding=_encoding(encoding), weighting=weighting, dimensions=dimensions, subspace=subspace
    )
    return Role(build_objective(objective, own_head), (shared,))


@register_method
def representation_sharing(
    kd: Rate = 10.0,
    contrast: Rate = 1.0,
    n_avg: int = 10,
    up: int = 1,
    down: int = 1,
    discriminator: Discriminator = "classifier",
    encoding: str = "float32",
    weighting: Weighting = "samples",
    min_count: int = 2,
    dimensions: float = 1.0,
    subspace: Subspace = "first",
    means: Means = "global",
    objective: str = "cross-entropy",
    own_head: bool = False,
) -> Role:
    """Mean features distilled, and contrasted with a random member's (Berdoz et al. 2022)."""
    observed = Observations(
        weight=contrast,
        n_avg=n_avg,
        up=up,
        down=down,
        discriminator=discriminator,
        encoding=_encoding(encoding),
        weighting=weighting,
        min_count=min_count,
        dimensions=dimensions,
        subspace=subspace,
    )
    check_choice("means", means, get_args(Means))
    if means == "seen":
        settings = {f.name: getattr(observed, f.name) for f in fields(observed)} | {"weight": 1.0}
        return Role(build_objective(objective, own_head), (SeenObservations(**settings, contrast=contrast, kd=kd),))
    return Role(build_objective(objective, own_head), _representations(kd, observed))


@register_method
def fedavg_1bit(
    every: int = 1,
    start: Start = "common",
    up: str = "bit",
    down: str = "bit",
    step: float = 1.0,
    objective: str = "cross-entropy",
    own_head: bool = False,
    own_model: bool = False,
) -> Role:
    """FedAvg at one bit per weight, both ways, with error feedback."""
    shared = Weights(every=every, start=start, up=_encoding(up), down=_encoding(down), step=step)
    return Role(build_objective(objective, own_head, own_model), (shared,))


@register_method
def consilience(
    kd: Rate = 0.3,
    contrast: Rate = 0.3,
    n_avg: int = 10,
    scale: Scale = "relative",
    weighting: Weighting = "samples",
    up: str = "bit",
    down: str = "int4",
    step: float = 1.5,
    every: int = 1,
    objective: str = "calibrated",
    own_head: bool = True,
    own_model: bool = True,
) -> Role:
    """The default method: representations in 16 bits, weights at 1 bit up and 4 down, a common and an own answer."""
    observed = Observations(weight=contrast, n_avg=n_avg, encoding=FLOAT16, weighting=weighting)
    shared = Weights(every=every, up=_encoding(up), down=_encoding(down), step=step)
    exchanges = (*_representations(kd, observed, scale), shared)
    return Role(build_objective(objective, own_head, own_model), exchanges, optional=("observations",))


@register_method
def two_stage(
    alpha_1: float = 0.1,
    alpha_2: float = 1.0,
    lam: float = 1.0,
    delta: float = 1e-3,
    device: Device = "private",
    start: Start = "common",
    inner: Inner = "round",
    batches: int = 0,
    calibrated: bool = False,
) -> Role:
    """A private part that reveals little of its inputs, below a common part that votes move (Ma et al. 2020)."""
    check_choice("device", device, get_args(Device))
    constant_number("lam", lam, low=1e-12)  # at 0 the server has no gradient, and would move by coins alone
    check_choice("start", start, get_args(Start))
    voted = Gradients(part=SERVER, delta=delta, inner=inner, batches=batches)
    shared = (Weights(part=DEVICE, start=start, up=BIT, down=BIT),) if device == "1bit" else ()
    return Role(TwoStage(alpha_1, alpha_2, lam, calibrated), (voted, *shared), start=start)


@register_method
def split_learning(cut: str = "", device: DevicePart = "handed-on") -> Role:
    """Learners take turns at a server that has the upper part of the model (Gupta and Raskar 2018)."""
    return Role(start="common", turns=Turns(cut, device))


@register_method
def cluster_sharing(
    clusters: int = 20,
    kd: Rate = 0.3,
    start: Start = "common",
    encoding: str = "float32",
    objective: str = "simclr",
) -> Role:
    """Learning without labels: mean features of common clusters, toward which features are pulled."""
    check_choice("start", start, get_args(Start))
    shared = Clusters(clusters=clusters, weight=kd, encoding=_encoding(encoding))
    return Role(build_objective(objective), (shared,), start=start)


@register_method
def flesd(
    objective: str = "simclr",
    distill: Distill = "distiller",
    distill_epochs: int = 200,
    distill_batch: int = 128,
    distill_lr: Rate = 1e-3,
    temperature: Rate = 0.1,
    student_temperature: Rate = 0.1,
    momentum: Rate = 0.999,
    queue: int = 2048,
    form: Form = "auto",
    down: int = 0,
    width: int = 0,
    keep: float = 1.0,
    encoding: str = "float32",
) -> Method:
    """Learning without labels: similarities of public samples, distilled (Shi et al. 2021)."""
    check_choice("distill", distill, get_args(Distill))
    check_integer("distill_epochs", distill_epochs)
    if not isinstance(distill_lr, Schedule):
        number_or_schedule("distill_lr", distill_lr, low=1e-12)
    check_integer("distill_batch", distill_batch)
    similar = Similarity(
        temperature=temperature,
        student_temperature=student_temperature,
        momentum=momentum,
        queue=queue,
        form=form,
        down=down,
        width=width,
        keep=keep,
        encoding=_encoding(encoding),
    )
    by_one = distill == "distiller"
    weights = (Weights(part="features"),) if by_one else ()
    pupil = (replace(similar, distills=True), *weights)
    return Method(
        "flesd",
        {
            "learner": Role(build_objective(objective), weights, uploads=()),
            "witness": Role(Augmented(), (similar,), downloads=(), data="public", epochs=0),
            "distiller": Role(
                Augmented(),
                pupil,
                uploads=tuple(e.name for e in weights),
                data="public",
                epochs=distill_epochs,
                batch_size=distill_batch,
                lr=distill_lr,
            ),
        },
        members={0: "distiller"},
        usual=("learner", "witness") if by_one else ("learner", "witness", "distiller"),
        host=0,
    )


@register_method
@wraps(flesd, assigned=())
def flesd_cc(**settings: Any) -> Method:
    """FLESD that communicates once, after all local epochs."""
    made = flesd(**settings)
    assert isinstance(made, Method)
    return replace(made, once=True)


def _representations(kd: Rate, observed: Observations, scale: Scale = "absolute") -> tuple[Exchange, ...]:
    """Prototypes, encoded, shared and weighted as the observations are, and these."""
    prototypes = Prototypes(
        weight=kd,
        min_count=observed.min_count,
        encoding=observed.encoding,
        scope=observed.scope,
        scale=scale,
        weighting=observed.weighting,
        dimensions=observed.dimensions,
        subspace=observed.subspace,
    )
    return (prototypes, observed)


def _encoding(name: str) -> Encoding:
    known = {k: e for k, e in ENCODINGS.items() if k not in ("int32",)}
    if name not in known:
        raise UnknownName("encoding", name, known)
    return known[name]


BUILT_IN = reserve_names()
