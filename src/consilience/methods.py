"""The methods by name. Each is a function of its settings; the docstring's first line is what `methods` lists."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Literal, get_args

from consilience.config.schedules import Schedule, constant_number, number_or_schedule, scheduled
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Exchange, Gradients, Logits, Observations, Prototypes, Similarity, Weights
from consilience.exchanges.base import Scope, Start
from consilience.exchanges.observations import Discriminator
from consilience.exchanges.similarity import Form
from consilience.exchanges.weights import Buffers
from consilience.method import Method, Role
from consilience.objectives import Augmented, TwoStage, build_objective
from consilience.task import DEVICE, SERVER
from consilience.validation import check_choice, check_integer
from consilience.wire.encodings import BIT, ENCODINGS, FLOAT16, Encoding

Settings = Mapping[str, Any]
Made = tuple[Exchange, ...] | Role | Method
"""What a method is made as: the exchanges of its only role, that role, or where it has several the method itself."""
Make = Callable[..., Made]
METHODS: dict[str, Make] = {}
_POOLED = {"centralized"}
Distill = Literal["distiller", "learner"]
Device = Literal["private", "1bit"]
"""What happens to the device's part of a model: it stays private, or is shared at one bit per weight."""


def method(make: Make) -> Make:
    """Enter a function that makes a method of its settings into the list of methods."""
    METHODS[make.__name__.replace("_", "-")] = make
    return make


@method
def centralized(objective: str = "cross-entropy") -> Role:
    """One learner holds all data: the yardstick, not a federation."""
    return Role(build_objective(objective))


@method
def independent(objective: str = "cross-entropy") -> Role:
    """Everybody learns alone."""
    return Role(build_objective(objective))


@method
def self_distillation(kd: float = 10.0, contrast: float = 1.0, n_avg: int = 10) -> tuple[Exchange, ...]:
    """Representation sharing with oneself only: the control for mere regularization."""
    return _representations(kd, contrast, n_avg, scope="oneself")


@method
def federated_distillation(kd: float = 10.0, encoding: str = "float32") -> tuple[Exchange, ...]:
    """Mean logits of each class, distilled (Jeong et al. 2018)."""
    return (Logits(weight=kd, encoding=_encoding(encoding)),)


@method
def fedavg(
    start: Start = "common",
    part: str = "*",
    every: int = 1,
    buffers: Buffers = "share",
    encoding: str = "float32",
    objective: str = "cross-entropy",
) -> Role:
    """The mean of everybody's weights (McMahan et al. 2017)."""
    coded = _encoding(encoding)
    shared = Weights(part=part, every=every, buffers=buffers, start=start, up=coded, down=coded)
    return Role(build_objective(objective), (shared,))


@method
def fedprox(
    mu: float = 0.01, start: Start = "common", part: str = "*", every: int = 1, objective: str = "cross-entropy"
) -> Role:
    """FedAvg with training held near the common weights (Li et al. 2020)."""
    number_or_schedule("mu", mu)
    return Role(build_objective(objective), (Weights(part=part, every=every, start=start, prox=mu),))


@method
def fedproto(kd: float = 10.0, encoding: str = "float32") -> tuple[Exchange, ...]:
    """Mean features of each class, distilled (Tan et al. 2022)."""
    return (Prototypes(weight=kd, encoding=_encoding(encoding)),)


@method
def representation_sharing(
    kd: float = 10.0,
    contrast: float = 1.0,
    n_avg: int = 10,
    up: int = 1,
    down: int = 1,
    discriminator: Discriminator = "classifier",
    encoding: str = "float32",
) -> tuple[Exchange, ...]:
    """Mean features distilled, and contrasted with a random member's (Berdoz et al. 2022)."""
    return _representations(kd, contrast, n_avg, up, down, discriminator, _encoding(encoding))


@method
def fedavg_1bit(every: int = 1, start: Start = "common", objective: str = "cross-entropy") -> Role:
    """FedAvg at one bit per weight, both ways, with error feedback."""
    return Role(build_objective(objective), (Weights(every=every, start=start, up=BIT, down=BIT),))


@method
def consilience(
    kd: float = Schedule("cosine", 1.0, 10.0, 100),
    contrast: float = 0.3,
    n_avg: int = 10,
    up: int = 1,
    down: int = 1,
    every: int = 1,
) -> tuple[Exchange, ...]:
    """The default method: representation sharing in sixteen bits, and weights at one bit both ways."""
    shared = _representations(kd, contrast, n_avg, up, down, encoding=FLOAT16)
    return (*shared, Weights(every=every, up=BIT, down=BIT))


@method
def two_stage(
    alpha_1: float = 0.1,
    alpha_2: float = 1.0,
    lam: float = 1.0,
    delta: float = 1e-3,
    device: Device = "private",
    start: Start = "common",
) -> Role:
    """A private part that tells little of its inputs, under a common one moved by vote (Ma et al. 2020)."""
    check_choice("device", device, get_args(Device))
    constant_number("lam", lam, low=1e-12)  # at 0 the server has no gradient, and would move by coins alone
    check_choice("start", start, get_args(Start))
    shared = (Weights(part=DEVICE, start=start, up=BIT, down=BIT),) if device == "1bit" else ()
    return Role(TwoStage(alpha_1, alpha_2, lam), (Gradients(part=SERVER, delta=delta), *shared), start=start)


@method
def flesd(
    objective: str = "simclr",
    distill: Distill = "distiller",
    distill_epochs: int = 200,
    distill_batch: int = 128,
    distill_lr: float = 1e-3,
    temperature: float = 0.1,
    student_temperature: float = 0.1,
    momentum: float = 0.999,
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


@method
@wraps(flesd, assigned=())
def flesd_cc(**settings: Any) -> Method:
    """FLESD that communicates once, after all local epochs."""
    made = flesd(**settings)
    assert isinstance(made, Method)
    return replace(made, once=True)


def _representations(
    kd: float,
    contrast: float,
    n_avg: int,
    up: int = 1,
    down: int = 1,
    discriminator: Discriminator = "classifier",
    encoding: Encoding = ENCODINGS["float32"],
    scope: Scope = "everybody",
) -> tuple[Exchange, ...]:
    return (
        Prototypes(weight=kd, encoding=encoding, scope=scope),
        Observations(
            weight=contrast,
            n_avg=n_avg,
            up=up,
            down=down,
            discriminator=discriminator,
            encoding=encoding,
            scope=scope,
        ),
    )


def _encoding(name: str) -> Encoding:
    known = {k: e for k, e in ENCODINGS.items() if k not in ("int32",)}
    if name not in known:
        raise UnknownName("encoding", name, known)
    return known[name]


def settings_of(name: str) -> dict[str, Any]:
    """The settings a method takes, with their defaults."""
    return {p.name: p.default for p in inspect.signature(_known(name)).parameters.values()}


def build_method(name: str, settings: Settings | None = None) -> Method:
    """The method of that name with these settings; unknown names and keys are refused with the nearest known one."""
    make, given = _known(name), dict(settings or {})
    defaults = settings_of(name)
    meant = {}
    for key, value in given.items():
        if key not in defaults:
            raise UnknownName("setting", key, defaults, of=f"method {name!r}")
        meant[key] = _checked(name, key, value, defaults[key])
    summary = (inspect.getdoc(make) or "").splitlines()[0]
    made = make(**meant)
    if isinstance(made, Method):
        return replace(made, name=name, summary=summary, settings=given)
    role = made if isinstance(made, Role) else Role(exchanges=made)
    return Method(name, {"learner": role}, pooled=name in _POOLED, summary=summary, settings=given)


def with_settings(method: Method, settings: Settings) -> Method:
    """The same method with some settings changed; one that was put together by hand has none to change."""
    by_hand = method.name not in METHODS or build_method(method.name, method.settings) != method
    if by_hand and settings:
        raise ConfigurationError(
            f"method {method.name!r} was put together by hand, so {next(iter(settings))!r} cannot be set by name; give "
            f"its learners roles of their own"
        )
    return method if by_hand else build_method(method.name, {**method.settings, **settings})


def _known(name: str) -> Make:
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


_KINDS = {int: "a whole number", str: "a word"}


def _checked(name: str, key: str, value: Any, default: Any) -> Any:
    """The setting as it is meant: of its default's kind, or where that is a fraction a schedule of them."""
    wanted = float | int if isinstance(default, float) else type(default)
    try:
        meant = scheduled(value) if isinstance(default, float) else value
    except ConfigurationError as error:
        raise ConfigurationError(f"method {name!r}: {key}: {error}") from None
    if not isinstance(meant, wanted) or isinstance(meant, bool):
        kind = "a number" if isinstance(default, float) else _KINDS[type(default)]
        or_schedule = ", or a schedule of numbers, such as 'ramp(0, 10, 20)'" if isinstance(default, float) else ""
        raise ConfigurationError(
            f"method {name!r}: {key} is {value!r}; it must be {kind}, such as its default {default!r}{or_schedule}"
        )
    return meant
