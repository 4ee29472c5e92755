"""Who takes part in a simulation, before anything happens: data dealt out, roles given, cohorts formed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from consilience import schedules
from consilience.agreement import agreed, difference
from consilience.config import Config
from consilience.data import Dataset, class_table
from consilience.data.deal import Deal, OwnTests, own_tests
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.learner import Blueprint, Learner
from consilience.method import Method
from consilience.models import own, recipe
from consilience.randomness import seed_of
from consilience.simulation.cast import Actor, Model
from consilience.simulation.cohort import CohortPlan, LocalWork, Members
from consilience.simulation.dealing import deal_out, joined, members_of
from consilience.simulation.variants import Variants, variants_of

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}


@dataclass(frozen=True)
class Scene:
    """The cast of a simulation; nothing in it changes."""

    method: Method
    variants: Variants
    seeds: tuple[int, ...]  # of each federation: the seeds of the first variant, then of the next
    learners: int
    participation: float
    offline: float
    plans: tuple[CohortPlan, ...]
    cohort_of: np.ndarray  # (federations, learners) where a learner's state lies: its cohort
    row_of: np.ndarray  # (federations, learners) and its row there
    counts: np.ndarray  # (federations, learners, classes) of a learner's samples
    test_counts: np.ndarray  # (classes,)
    data: Dataset  # as learners have it
    own_tests: OwnTests | None  # test samples as learners have theirs; None where they are like everybody's
    deals: tuple[Deal, ...]  # how it was dealt out, one a seed

    @property
    def federations(self) -> int:
        """How many federations run side by side."""
        return len(self.seeds)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles in the order they act."""
        return tuple(self.method.roles)

    @cached_property
    def shares(self) -> np.ndarray:
        """The same as shares of what a learner has."""
        shares: np.ndarray = self.counts / self.counts.sum(-1, keepdims=True)
        return shares

    def label(self, federation: int) -> str:
        """What a federation is known by."""
        variant = federation * self.variants.count // self.federations
        return ", ".join([f"seed {self.seeds[federation]}", *self.variants.names[variant : variant + 1]])

    def common_seed(self, federation: int) -> int:
        """Of the weights everybody in a federation can make for themselves."""
        return seed_of("common weights", self.seeds[federation])

    def learner_seed(self, federation: int, learner: int) -> int:
        """Of a learner's own first weights."""
        return seed_of("weights", self.seeds[federation], int(learner))


def set_scene(config: Config, method: Method, data: Dataset, models: Sequence[Model]) -> Scene:
    """Deal out the data, give everybody a role and a model, and refuse what cannot work together."""
    variants = variants_of(config, method, models)
    learners = len(variants.cast[0])
    _check_roles(method, learners)
    once = range(config.seed, config.seed + config.seeds)
    deals = [deal_out(config, method, data, seed) for seed in once]
    dealt, parts = joined(data, deals, learners)
    seeds = tuple(once) * variants.count
    kinds: dict[str, list[int]] = {}
    for who, actor in enumerate(variants.cast[0]):
        kinds.setdefault(actor.kind, []).append(who)
    made = [_plan(config, variants, dealt, who, seeds, parts * variants.count) for who in kinds.values()]
    plans = tuple(plan for plan, _ in made)
    cohort_of, row_of = np.zeros((2, len(seeds), learners), dtype=np.int64)
    for i, plan in enumerate(plans):
        at = plan.members.federation, plan.members.learner
        cohort_of[at], row_of[at] = i, np.arange(len(plan.members))
    check_channels([learner for _, learner in made], [plan.members.learner[0] for plan in plans])
    return Scene(
        method,
        variants,
        seeds,
        learners,
        config.participation,
        config.offline,
        plans,
        cohort_of,
        row_of,
        np.stack([class_table(dealt.targets, p, data.classes) for p in parts] * variants.count),
        np.bincount(data.test_targets, minlength=data.classes),
        dealt,
        own_tests(data, learners, shift=config.shift),
        tuple(deals),
    )


def _check_roles(method: Method, learners: int) -> None:
    """Refuse roles given to learners who are not there, and roles nobody has."""
    strangers = sorted(who for who in method.members if not 0 <= who < learners)
    if strangers:
        raise ConfigurationError(
            f"method {method.name!r} gives learner {strangers[0]} a role; there are learners 0 to {learners - 1}"
        )
    idle = set(method.roles) - {method.role_of(who) for who in range(learners)}
    if idle:
        raise ConfigurationError(f"method {method.name!r}: nobody of {learners} learners has the role {min(idle)!r}")


def _plan(
    config: Config,
    variants: Variants,
    data: Dataset,
    learners: list[int],
    seeds: tuple[int, ...],
    parts: list[list[np.ndarray]],
) -> tuple[CohortPlan, Learner]:
    """Learners of one kind, in every federation."""
    actor = variants.cast[0][learners[0]]
    model = actor.model
    name = model if isinstance(model, str) else getattr(model, "__name__", "own model")
    rows = [(f, who) for f in range(len(seeds)) for who in learners]
    cast = [variants.cast[f * variants.count // len(seeds)][who] for f, who in rows]
    settings = _own(cast)
    blueprint = Blueprint(
        build=recipe(model, data.shape, data.classes, config.width) if isinstance(model, str) else model,
        role=actor.role,
        optimiser=actor.optimiser,
        shape=data.shape,
        model=name,
        dtype=DTYPES[config.precision],
        device=config.device,
        half=config.precision == "bf16",
        varied=_by_owner(settings),
    )
    members, learner = members_of(rows, cast, seeds, parts, data), Learner(blueprint)
    if config.width not in (None, learner.task.width):
        raise ConfigurationError(
            f"width is {config.width}, and model {name!r} has features of width {learner.task.width}; build it so, or "
            f"leave width out"
        )
    least = _least_batch(learner, members, data.classes)
    if actor.batch_size < least:
        raise ConfigurationError(
            f"batch_size is {actor.batch_size}, and BatchNorm in model {name!r} needs at least {least} samples in a "
            f"batch; take larger batches or a model without BatchNorm"
        )
    work = LocalWork(actor.batch_size, actor.epochs, least, config.optimiser_state == "reset")
    named = {f"setting.{owner}.{setting}": values for (owner, setting), values in settings.items()}
    return CohortPlan(actor.part, blueprint, members, work, learner.parameters.size, named), learner


def _own(cast: Sequence[Actor]) -> dict[tuple[str, str], tuple[float, ...]]:
    """The numbers in which learners of a kind differ, or that change with the rounds: one a row."""
    columns: dict[tuple[str, str], list[float]] = {}
    for actor in cast:
        for owner, name, value in actor.numbers():
            columns.setdefault((owner, name), []).append(value)
    return {
        key: tuple(values)
        for key, values in columns.items()
        if len(set(values)) > 1 or isinstance(values[0], schedules.Schedule)
    }


def _by_owner(settings: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for owner, name in settings:
        found[owner] = (*found.get(owner, ()), name)
    return found


def _least_batch(learner: Learner, members: Members, classes: int) -> int:
    """Two where the model normalises over the batch, else one; refuses a learner who cannot fill such a batch."""
    if learner.task.classes != classes:
        raise ConfigurationError(
            f"model {learner.task.model!r} tells {learner.task.classes} classes apart, the data has {classes}"
        )
    _check_features(learner)
    if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in learner.model.modules()):
        return 1
    single = np.flatnonzero(members.sizes < 2)
    if single.size:
        raise ConfigurationError(
            f"learner {members.learner[single[0]]} has one sample, and BatchNorm in model {learner.task.model!r} needs "
            f"two; give it more data or take a model without BatchNorm"
        )
    return 2


@torch.no_grad()
def _check_features(learner: Learner) -> None:
    """Refuse a model that cannot take the data's inputs, or whose features are not what its classifier reads."""
    task, inputs = learner.task, torch.zeros(2, *learner.task.inputs, dtype=learner.dtype).to(learner.device)
    try:
        with torch.random.fork_rng(devices=[]):  # dropout draws
            for training in (True, False):
                learner.mode(training=training)
                features = learner.model.features(inputs)
    except ConsilienceError:
        raise
    except Exception as error:  # whatever somebody's own code may raise
        said = str(error) if isinstance(error, RuntimeError | ValueError | IndexError) else own.failure(error)
        raise ConfigurationError(
            f"model {task.model!r} cannot take inputs of the shape {task.inputs}: {said}"
        ) from error
    if features.shape != (2, task.width):
        raise ConfigurationError(
            f"model {task.model!r}: its features have the shape {tuple(features.shape[1:])} for an input, and its "
            f"classifier reads ({task.width},); end the features with a layer that gives just that"
        )


def check_channels(learners: Sequence[Learner], who: Sequence[int]) -> None:
    """Refuse learners whose exchanges ask for different channels under one name."""
    first: dict[str, int] = {}
    for i, learner in enumerate(learners):
        for name, channel in learner.channels.items():
            j = first.setdefault(name, i)
            other = learners[j].channels[name]
            if agreed(channel) == agreed(other):
                continue
            a, b = learners[j].task, learner.task
            raise ConfigurationError(
                f"learners {who[j]} ({a.model}, d' = {a.width}) and {who[i]} ({b.model}, d' = {b.width}) cannot share "
                f"{name!r}: {difference(other, channel)}. {_way_out(name)}"
            )


def _way_out(name: str) -> str:
    alone = "a group that should not take part in it leaves it out with exchanges = [...]"
    if name == "weights":
        return f"Weights travel between equal architectures only; share prototypes or logits instead, or {alone}"
    return f"Give all models one feature width d' (width = ...), or share logits instead, or {alone}"
