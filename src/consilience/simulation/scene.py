"""Who takes part in a simulation, before anything happens: data dealt out, roles given, cohorts formed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import nn

from consilience.config import Config
from consilience.data import Dataset, class_table, partition
from consilience.errors import ConfigurationError
from consilience.learner import Blueprint, Learner
from consilience.method import Method
from consilience.models import build
from consilience.optimisers import build_optimiser
from consilience.randomness import seed_of
from consilience.simulation.cohort import CohortPlan, Members, Schedule
from consilience.simulation.variants import Variants, variants_of

Build = Callable[[], nn.Module]
Model = str | Build
"""A model by name, or whatever makes one."""

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
    learners = 1 if method.pooled else config.learners
    models = models[:1] if method.pooled else models
    if len(models) not in (1, learners):
        raise ConfigurationError(f"{len(models)} models for {learners} learners: give one for all, or one for each")
    _check_roles(method, learners)
    variants = variants_of(config, method)
    once = range(config.seed, config.seed + config.seeds)
    seeds = tuple(once) * variants.count
    parts = [_deal(config, data, learners, seed) for seed in once] * variants.count
    counts = np.stack([class_table(data.targets, p, data.classes) for p in parts[: len(once)]] * variants.count)
    groups: dict[tuple[str, Model], list[int]] = {}
    for who in range(learners):
        groups.setdefault((method.role_of(who), models[who % len(models)]), []).append(who)
    made = [
        _plan(config, method, variants, data, role, model, who, seeds, parts) for (role, model), who in groups.items()
    ]
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
        counts,
        np.bincount(data.test_targets, minlength=data.classes),
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


def _deal(config: Config, data: Dataset, learners: int, seed: int) -> list[np.ndarray]:
    how = "iid" if learners == 1 else config.partition
    return partition(data.targets, learners, how, np.random.default_rng(seed_of("partition", seed)))


def _plan(
    config: Config,
    method: Method,
    variants: Variants,
    data: Dataset,
    role: str,
    model: Model,
    learners: list[int],
    seeds: tuple[int, ...],
    parts: list[list[np.ndarray]],
) -> tuple[CohortPlan, Learner]:
    name = model if isinstance(model, str) else getattr(model, "__name__", "own model")
    blueprint = Blueprint(
        build=partial(build, model, data.shape, data.classes) if isinstance(model, str) else model,
        role=method.roles[role],
        optimiser=build_optimiser(config.optimiser, config.lr, config.momentum, config.weight_decay),
        shape=data.shape,
        model=name,
        dtype=DTYPES[config.precision],
        device=config.device,
        half=config.precision == "bf16",
        varied=variants.varied(role),
    )
    members, learner = _members(learners, seeds, parts), Learner(blueprint)
    least = _least_batch(learner, members, data.classes)
    if config.batch_size < least:
        raise ConfigurationError(
            f"batch_size is {config.batch_size}, and BatchNorm in model {name!r} needs at least {least} samples in a "
            f"batch; take larger batches or a model without BatchNorm"
        )
    epochs = method.roles[role].epochs or config.epochs
    schedule = Schedule(config.batch_size, epochs, least, config.optimiser_state == "reset")
    settings = variants.rows(role, members.federation * variants.count // len(seeds))
    return CohortPlan(role, blueprint, members, schedule, learner.parameters.size, settings), learner


def _members(learners: list[int], seeds: tuple[int, ...], parts: list[list[np.ndarray]]) -> Members:
    rows = [(f, who) for f in range(len(seeds)) for who in learners]
    samples = [np.sort(parts[f][who]) for f, who in rows]
    stops = np.cumsum([len(s) for s in samples])
    even = [len({len(p) for p in parts[f]}) == 1 for f in range(len(seeds))]
    return Members(
        federation=np.array([f for f, _ in rows]),
        learner=np.array([who for _, who in rows]),
        seed=np.array([seeds[f] for f, _ in rows]),
        start=np.concatenate([[0], stops[:-1]]),
        stop=stops,
        even=np.array([even[f] for f, _ in rows]),
        index=np.concatenate(samples),
    )


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
    task = learner.task
    try:
        features = learner.model.eval().features(torch.zeros(2, *task.inputs, dtype=learner.dtype).to(learner.device))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"model {task.model!r} cannot take inputs of the shape {task.inputs}: {error}"
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
            if channel == other:
                continue
            a, b = learners[j].task, learner.task
            raise ConfigurationError(
                f"learners {who[j]} ({a.model}, d' = {a.width}) and {who[i]} ({b.model}, d' = {b.width}) cannot share "
                f"{name!r}: {_difference(other.tensors, channel.tensors)}. {_way_out(name)}"
            )


def _difference(a: object, b: object) -> str:
    assert isinstance(a, dict) and isinstance(b, dict)
    for key in [*a, *b]:
        if key not in a or key not in b:
            return f"only one of them has {key!r}"
        if a[key].shape != b[key].shape:
            return f"{key!r} is {a[key].shape} at one and {b[key].shape} at the other"
    return "their settings differ"


def _way_out(name: str) -> str:
    if name == "weights":
        return "Weights travel between equal architectures only; share prototypes or logits instead"
    return "Give all models one feature width d', or share logits instead"
