"""Who takes part in a simulation, before anything happens: data dealt out, roles given, cohorts formed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from consilience.config import schedules
from consilience.config.config import Config
from consilience.data import Dataset, class_counts
from consilience.data.local_datasets import LocalDatasets, LocalTestSets, local_test_sets
from consilience.errors import ConfigurationError
from consilience.learner.learner import Learner, LearnerSpec
from consilience.method import Method
from consilience.models import model_factory
from consilience.randomness import seed_of
from consilience.simulation.engines.cohort import CohortPlan, LocalWork
from consilience.simulation.engines.probing import PROBES
from consilience.simulation.round.plan import Crowd
from consilience.simulation.setup.assign_data import assign_data, data_overrides, joined, members_of
from consilience.simulation.setup.compatibility import check_channels, check_roles, check_watched, least_batch
from consilience.simulation.setup.participants import Model, Participant
from consilience.simulation.setup.variants import Variants, variants_of
from consilience.task import Public

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bf16": torch.float32, "auto": torch.float32}


@dataclass(frozen=True)
class Setup:
    """The cast of a simulation; nothing in it changes."""

    method: Method
    variants: Variants
    seeds: tuple[int, ...]  # of each federation: the seeds of the first variant, then of the next
    learners: int
    participation: float
    offline: float
    plans: tuple[CohortPlan, ...]
    rows: np.ndarray  # (cohorts, federations, learners) a learner's row in each cohort, -1 where it has none
    homes: np.ndarray  # (federations, learners) the cohort of its first role: its model lies there between rounds
    counts: np.ndarray  # (federations, learners, classes) of a learner's samples
    test_counts: np.ndarray  # (classes,)
    data: Dataset  # as learners have it
    local_test_sets: LocalTestSets | None  # test samples as learners have theirs; None where they are like everybody's
    local_datasets: tuple[LocalDatasets, ...]  # how it was dealt out, one a seed
    probes: tuple[str, ...]  # by which representations are tested
    ensemble: bool  # whether all learners' logits are tested together
    watched: str | None  # a layer whose dependence on the inputs is measured
    joins: np.ndarray  # (learners,) the round from which each is there
    crowds: tuple[Crowd, ...]  # groups of whom a share of their own takes part in a round

    @property
    def federations(self) -> int:
        """How many federations run side by side."""
        return len(self.seeds)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles in the order they act."""
        return tuple(self.method.roles)

    @property
    def labeled(self) -> bool:
        """Whether what the learners' classifiers tell means anything: whether all of them are taught."""
        return _labeled(self.variants)

    @property
    def headed(self) -> bool:
        """Whether every device has a head of its own that tells classes."""
        return all(participant.role.objective.headed for cast in self.variants.cast for participant in cast)

    @property
    def copies(self) -> np.ndarray:
        """From where to where each federation's samples lie in the training set, (federations, 2): one copy a seed."""
        size, seeds = len(self.local_datasets[0].targets), len(self.local_datasets)
        copied = len(self.data.targets) > size
        first = np.arange(self.federations) % seeds * size * copied
        return np.stack([first, first + size], axis=1)

    @property
    def public_bytes(self) -> np.ndarray:
        """What each learner hears of the public set before the first round, (federations, learners): a byte a value.

        Its samples are images, whose pixels are bytes, or a table, at four bytes a number.
        """
        heard = np.zeros((self.federations, self.learners))
        host = self.method.host
        if host is not None:
            each = math.prod(self.data.shape) * (1 if len(self.data.shape) == 3 else 4)
            heard += each * self.counts[:, host].sum(-1)[:, None]
            heard[:, host] = 0
        return heard

    def there(self, round_: int) -> np.ndarray:
        """Who has joined by a round, (learners,); before the first those who are there from then on."""
        joined: np.ndarray = self.joins <= max(round_, 1)
        return joined

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


def build_setup(config: Config, method: Method, data: Dataset, models: Sequence[Model]) -> Setup:
    """Deal out the data, give everybody a role and a model, and refuse what cannot work together."""
    variants = variants_of(config, method, models)
    learners = variants.learners
    check_roles(method, learners)
    if config.ensemble == "on" and not _labeled(variants):
        raise ConfigurationError(
            f"ensemble is 'on', and not all learners of method {method.name!r} learn from labels: what untrained "
            f"classifiers tell together means nothing; leave ensemble out, or set it to 'off'"
        )
    once = range(config.seed, config.seed + config.seeds)
    local_datasets = [assign_data(config, method, data, seed) for seed in once]
    dealt, parts = joined(data, local_datasets, learners)
    seeds = tuple(once) * variants.count
    kinds: dict[str, list[int]] = {}
    for place, participant in enumerate(variants.cast[0]):
        kinds.setdefault(participant.kind, []).append(place)
    stage = _Stage(config, method, variants, dealt, seeds, parts * variants.count)
    made = [stage.plan(places, some) for places in kinds.values() for some in stage.alike(places)]
    plans = tuple(plan for plan, _ in made)
    rows, homes = np.full((len(plans), len(seeds), learners), -1), np.zeros((len(seeds), learners), dtype=np.int64)
    first = np.array([method.role_of(who) for who in range(learners)])
    for i, plan in enumerate(plans):
        at = plan.members.federation, plan.members.learner
        rows[i][at] = np.arange(len(plan.members))
        homes[(rows[i] >= 0) & (method.pooled | (first == plan.role))] = i
    for together in dict.fromkeys(cohorts_in(rows, f) for f in range(len(seeds))):
        check_channels([made[i][1] for i in together], [plans[i].members.learner[0] for i in together])
    return Setup(
        method,
        variants,
        seeds,
        learners,
        config.participation,
        config.offline,
        plans,
        rows,
        homes,
        np.stack([class_counts(dealt.targets, p, data.classes) for p in parts] * variants.count),
        np.bincount(data.test_targets, minlength=data.classes),
        dealt,
        local_test_sets(data, learners, shift=config.shift, overrides={} if method.pooled else data_overrides(config)),
        tuple(local_datasets),
        () if config.probe == "auto" and _labeled(variants) else PROBES[config.probe],
        config.ensemble == "on" or (config.ensemble == "auto" and _in_parts(variants) and _labeled(variants)),
        config.watch,
        _joins(config, method),
        () if method.pooled else _crowds(config),
    )


def _joins(config: Config, method: Method) -> np.ndarray:
    """The round from which each learner is there, (learners,); a pooled one is from the first."""
    found = np.ones(1 if method.pooled else config.learners, dtype=np.int64)
    for who, (name, group) in config.members().items() if not method.pooled else ():
        found[who] = group.joins
        if who == method.host and group.joins > 1:
            raise ConfigurationError(
                f"groups.{name}.joins is {group.joins}, and learner {who} has the public set of method "
                f"{method.name!r}, which all work on from the first round; let it be there from then on"
            )
    return found


def _crowds(config: Config) -> tuple[Crowd, ...]:
    """The groups of whom a share of their own takes part in a round."""
    return tuple(
        Crowd(np.array(group.numbers(name, config.learners)), group.participation)
        for name, group in config.groups.items()
        if group.participation is not None
    )


def _in_parts(variants: Variants) -> bool:
    """Whether learners have a part of the model each for itself and another in common, which an exchange owns."""
    roles = [participant.role for cast in variants.cast for participant in cast]
    return any(e.owned_part is not None for role in roles for e in role.exchanges)


def _labeled(variants: Variants) -> bool:
    """Whether every learner's model has a classifier that is taught: else what it tells means nothing."""
    return all(participant.role.objective.labeled for cast in variants.cast for participant in cast)


@dataclass(frozen=True)
class _Stage:
    """What cohorts are planned from: one a kind of learner, with its rows in every federation."""

    config: Config
    method: Method
    variants: Variants
    data: Dataset
    seeds: tuple[int, ...]
    parts: list[list[np.ndarray]]

    def alike(self, places: list[int]) -> list[list[int]]:
        """Federations in which learners of one kind have tensors of one shape: whose public sets are equally large."""
        by_size: dict[int, list[int]] = {}
        public = self.variants.cast[0][places[0]].role.data == "public"
        for f in range(len(self.seeds)):
            by_size.setdefault(len(self._public_samples(f)) if public else 0, []).append(f)
        return list(by_size.values())

    def plan(self, places: list[int], federations: list[int]) -> tuple[CohortPlan, Learner]:
        """Learners of one kind, by their places in the cast, in these federations."""
        config, data, count = self.config, self.data, len(self.seeds)
        participant = self.variants.cast[0][places[0]]
        model = participant.model
        name = model if isinstance(model, str) else getattr(model, "__name__", "own model")
        rows = [(f, place) for f in federations for place in places]
        cast = [self.variants.cast[f * self.variants.count // count][place] for f, place in rows]
        settings = _own(cast)
        spec = LearnerSpec(
            build=model_factory(model, data.shape, data.classes, config.width) if isinstance(model, str) else model,
            role=participant.role,
            optimizer=participant.optimizer,
            shape=data.shape,
            model=name,
            dtype=DTYPES[config.precision],
            device=config.device,
            half=_half(config, self.variants),
            varied=_by_owner(settings),
            scaling=(data.mean, data.std),
            symbols=len(data.alphabet),
            public=self._public(federations) if participant.role.data == "public" else None,
        )
        members = members_of([f for f, _ in rows], cast, self.seeds, self.parts, data, self.method.host)
        learner = Learner(spec)
        if config.width not in (None, learner.task.width):
            raise ConfigurationError(
                f"width is {config.width}, and model {name!r} has features of width {learner.task.width}; build it so, "
                f"or leave width out"
            )
        least = least_batch(learner, members, participant, data)
        if config.watch is not None:
            check_watched(learner, config.watch)
        fresh = config.optimizer_state == "reset" or participant.role.data == "public"
        work = LocalWork(participant.batch_size, participant.epochs, least, fresh)
        named = {f"setting.{owner}.{setting}": values for (owner, setting), values in settings.items()}
        return CohortPlan(participant.part, spec, members, work, learner.parameters.size, named), learner

    def _public(self, federations: list[int]) -> Public:
        """The public sets of federations that have equally many samples in it."""
        chosen, mark = [self._public_samples(f) for f in federations], hashlib.sha256()
        for samples in chosen:
            mark.update(self.data.inputs[samples].tobytes())
        return Public(len(chosen[0]), mark.hexdigest())

    def _public_samples(self, federation: int) -> np.ndarray:
        assert self.method.host is not None
        return np.sort(self.parts[federation][self.method.host])


def _half(config: Config, variants: Variants) -> bool:
    """Whether models run in bfloat16: as asked for, or on a GPU where learners learn without labels."""
    gpu = torch.device(config.device).type == "cuda"
    return config.precision == "bf16" or (config.precision == "auto" and gpu and not _labeled(variants))


def _own(cast: Sequence[Participant]) -> dict[tuple[str, str], tuple[float, ...]]:
    """The numbers in which learners of a kind differ, or that change with the rounds: one a row."""
    columns: dict[tuple[str, str], list[float]] = {}
    for participant in cast:
        for owner, name, value in participant.numbers():
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


def cohorts_in(rows: np.ndarray, federation: int) -> tuple[int, ...]:
    """The cohorts with somebody in a federation; rows: (cohorts, federations, learners), as in a `Scene`."""
    return tuple(np.flatnonzero((rows[:, federation] >= 0).any(-1)).tolist())
