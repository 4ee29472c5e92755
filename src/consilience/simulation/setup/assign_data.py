"""Assign samples to learners, and determine which samples may be shared."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.data.local_datasets import LocalDatasets, make_local_datasets
from consilience.data.local_shifts import DataOverride
from consilience.data.local_test_sets import LocalTestSets, local_test_sets
from consilience.data.partition import parse_partition
from consilience.errors import ConfigurationError, UnknownName
from consilience.kinds import kind_of
from consilience.method import Method, Role
from consilience.randomness import random_bits
from consilience.simulation.engines.cohort import Members
from consilience.simulation.setup.participants import Participant
from consilience.simulation.setup.variants import Variants

log = logging.getLogger("consilience")


@dataclass(frozen=True)
class AssignedData:
    """The training set as learners have it, who has which samples, and the test samples."""

    train: Dataset  # as learners have it: one copy for each seed where learners change samples
    parts: list[list[np.ndarray]]  # of each federation and learner: positions of its samples in the training set
    counts: np.ndarray  # (federations, learners, groups) of a learner's samples, held out or not
    sizes: np.ndarray  # (federations, learners) how many samples a learner has, held out or not
    test_totals: np.ndarray  # (groups, sums) what a score needs of the test samples beside what is predicted of them
    local_test_sets: LocalTestSets | None  # test samples as learners have theirs; None where all learners have the same
    local_datasets: tuple[LocalDatasets, ...]  # how the data was split, one for each seed
    validation: list[list[np.ndarray]] | None = None  # as `parts`, what learners hold out for validation

    @cached_property
    def shares(self) -> np.ndarray:
        """Shares of the groups, such as classes, in each learner's samples, (federations, learners, groups)."""
        shares: np.ndarray = self.counts / np.maximum(self.counts.sum(-1, keepdims=True), 1)
        return shares

    @cached_property
    def training_counts(self) -> np.ndarray:
        """Samples of each group that learners train on, without those held out, (federations, learners, groups)."""
        return np.stack([np.stack([self.counts_of(part) for part in mine]) for mine in self.parts])

    def counts_of(self, samples: np.ndarray) -> np.ndarray:
        """How many training samples at these positions are in each group, (groups,)."""
        return self.train.group_counts(self.train.targets[samples])

    @property
    def ranges(self) -> np.ndarray:
        """Start and stop of each federation's samples in the training set, (federations, 2)."""
        size, seeds = len(self.local_datasets[0].targets), len(self.local_datasets)
        copied = len(self.train.targets) > size
        first = np.arange(len(self.parts)) % seeds * size * copied
        return np.stack([first, first + size], axis=1)


def assign_data(
    config: Config,
    method: Method,
    data: Dataset,
    variants: Variants,
    first: int = 0,
    kept: np.ndarray | None = None,
) -> AssignedData:
    """Split the data between the learners of every federation; variants have the same split.

    first: the number of the first learner, where others are elsewhere; it decides which samples are held out. kept:
    (seeds, training samples) which samples each federation has; all are then split as the first seed's are.
    """
    seeds = range(config.federation.seed, config.federation.seed + config.federation.seeds)
    splits = seeds if kept is None else seeds[:1]
    local_datasets = tuple(split_for_seed(config, method, data, seed) for seed in splits)
    train, parts = concat_training_sets(data, local_datasets, variants.learners)
    if kept is not None:
        parts = [[part[mine[part]] for part in parts[0]] for mine in kept]
    counts = [np.stack([train.group_counts(train.targets[part]) for part in mine]) for mine in parts]
    sizes = [[len(part) for part in mine] for mine in parts]
    parts, held = hold_out(parts, seeds, config.evaluation.validation, method.host, first)
    if config.evaluation.validation:
        _check_held_out(held, config.evaluation.validation, method.host)
    overrides = {} if method.pooled else data_overrides(config)
    return AssignedData(
        train=train,
        parts=parts * variants.count,
        counts=np.stack(counts * variants.count),
        sizes=np.array(sizes * variants.count),
        test_totals=kind_of(data.target).totals(data.target, data.classes, data.test_targets),
        local_test_sets=local_test_sets(data, variants.learners, shift=config.federation.shift, overrides=overrides),
        local_datasets=local_datasets,
        validation=held * variants.count if config.evaluation.validation else None,
    )


def hold_out(
    parts: list[list[np.ndarray]], seeds: Sequence[int], share: float, host: int | None, first: int = 0
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Positions of samples to train on, and of those held out for validation, by seed and learner.

    A learner holds out at least one sample and keeps at least one; the host of a public set holds out none, since all
    of its samples are public. Which ones depends on the seed and the learner alone.
    """
    trained, held = [], []
    for seed, mine in zip(seeds, parts, strict=True):
        chosen = [_held_out(part, seed, who, 0.0 if who == host else share) for who, part in enumerate(mine, first)]
        trained.append([part[~out] for part, out in zip(mine, chosen, strict=True)])
        held.append([part[out] for part, out in zip(mine, chosen, strict=True)])
    return trained, held


def _check_held_out(held: list[list[np.ndarray]], share: float, host: int | None) -> None:
    """Refuse a seed in which no learner can hold out a sample; say which learners cannot."""
    for mine in held:
        without = [who for who, out in enumerate(mine) if not len(out) and who != host]
        if not any(map(len, mine)):
            raise ConfigurationError(
                f"validation is {share}, but every learner has one sample, and a learner keeps at least one to train "
                f"on; give learners more data, or leave validation out"
            )
        if without:
            log.warning(
                "validation: %d of %d learners have one sample and hold out none, learner %d is the first; means of "
                "validation accuracy are over the others",
                len(without), len(mine), without[0],
            )  # fmt: skip


def _held_out(part: np.ndarray, seed: int, who: int, share: float) -> np.ndarray:
    """Which of a learner's samples are held out, (samples,)."""
    out = np.zeros(len(part), dtype=bool)
    if share:
        count = min(max(1, round(share * len(part))), len(part) - 1)
        out[np.argsort(random_bits("validation", seed, who, np.arange(len(part))), kind="stable")[:count]] = True
    return out


def split_for_seed(config: Config, method: Method, data: Dataset, seed: int) -> LocalDatasets:
    """The split of one seed; a pooled method needs it only if data is shifted or selected before it is pooled."""
    # With the partition "owners", samples of owners that are not learners are left out, pooled or not.
    by_owner = parse_partition(config.federation.partition).word == "owners"
    whole = method.pooled and config.federation.shift == "none" and not by_owner and not _group_overrides(config)
    learners, how = (1, "iid") if whole else (config.federation.learners, config.federation.partition)
    return make_local_datasets(
        data,
        learners,
        partition=how,
        shift=config.federation.shift,
        seed=seed,
        overrides={} if whole else data_overrides(config),
    )


def data_overrides(config: Config) -> dict[int, DataOverride]:
    """Learners with their own number of samples or their own shift; the host of the public set is one of them."""
    found = _group_overrides(config)
    if config.federation.public is not None and config.federation.learners > 1:
        found[0] = replace(found.get(0, DataOverride()), samples=config.federation.public, setting="public")
    return found


def _group_overrides(config: Config) -> dict[int, DataOverride]:
    return {
        who: DataOverride(group.samples, group.shift, f"groups.{name}.samples", group.flips_labels)
        for who, (name, group) in config.groups_by_learner().items()
        if group.samples is not None or group.shift is not None or group.flips_labels
    }


def concat_training_sets(
    data: Dataset, local_datasets: Sequence[LocalDatasets], learners: int
) -> tuple[Dataset, list[list[np.ndarray]]]:
    """One training set for all seeds, and the samples of each learner in it.

    It is the data itself, or one copy for each seed if shifts change the samples.
    """
    parts = [d.parts if learners > 1 else [np.sort(np.concatenate(d.parts))] for d in local_datasets]
    if all(d.inputs is data.inputs and d.targets is data.targets for d in local_datasets):
        return data, parts
    n = len(data.targets)
    copies = replace(
        data,
        inputs=np.concatenate([d.inputs for d in local_datasets])
        if len(local_datasets) > 1
        else local_datasets[0].inputs,
        targets=np.concatenate([d.targets for d in local_datasets]),
        shareable=None if data.shareable is None else np.tile(data.shareable, len(local_datasets)),
        owners=None if data.owners is None else np.tile(data.owners, len(local_datasets)),
        sample_epsilons=None if data.sample_epsilons is None else np.tile(data.sample_epsilons, len(local_datasets)),
    )
    return copies, [[part + k * n for part in mine] for k, mine in enumerate(parts)]


def members_of(
    federations: Sequence[int],
    participants: Sequence[Participant],
    seeds: tuple[int, ...],
    assigned: AssignedData,
    host: int | None,
) -> Members:
    """The members of a cohort: the federation, learner and samples of each row, its own or the public set."""
    parts, data, validation = assigned.parts, assigned.train, assigned.validation
    of = [
        host if participant.role.data == "public" and host is not None else participant.learner
        for participant in participants
    ]
    samples = [np.sort(parts[f][who]) for f, who in zip(federations, of, strict=True)]
    stops = np.cumsum([len(s) for s in samples])
    # Learners that contrast samples, or all train on the public set, keep a partial last batch.
    alike = participants[0].role.data == "public" or participants[0].role.objective.compares_samples
    even = [alike or len({len(p) for p in parts[f]}) == 1 for f in range(len(seeds))]
    shared = [
        _shared(data, participant.learner, participant.role, mine, host)
        for participant, mine in zip(participants, samples, strict=True)
    ]
    all_shared = np.concatenate(shared)
    return Members(
        federation=np.array(federations),
        learner=np.array([participant.learner for participant in participants]),
        seed=np.array([seeds[f] for f in federations]),
        start=np.concatenate([[0], stops[:-1]]),
        stop=stops,
        even=np.array([even[f] for f in federations]),
        index=np.concatenate(samples),
        shared=None if all_shared.all() else all_shared,
        validation=None
        if validation is None
        else tuple(validation[f][each.learner] for f, each in zip(federations, participants, strict=True)),
    )


def may_share(data: Dataset, never_share: Sequence[int | str], samples: np.ndarray) -> np.ndarray:
    """Which samples may be shared, (samples,): those not marked, and of no class or label in `never_share`."""
    shareable = np.ones(len(samples), dtype=bool) if data.shareable is None else data.shareable[samples]
    unshared = [class_number(data, name) for name in never_share]
    if not unshared:
        return shareable
    found: np.ndarray = shareable & ~kind_of(data.target).in_groups(data.target, data.targets[samples], unshared)
    return found


def _shared(data: Dataset, who: int, role: Role, samples: np.ndarray, host: int | None) -> np.ndarray:
    """Which of a learner's samples may enter its uploads; refused if an exchange would upload all of them anyway."""
    shareable = may_share(data, role.never_share, samples)
    if role.data == "public":
        if who != host:  # its never_share is about its own samples, and these are the host's
            shareable = may_share(data, (), samples)
        if not shareable.all():
            raise ConfigurationError(
                f"{int((~shareable).sum())} samples of the public set are marked never to be shared; choose another "
                f"host, or a public set of samples that may be shared"
            )
        return shareable
    # An exchange that does not upload representations of samples, trains a part of the model, or updates its state
    # with every batch uploads what depends on all samples.
    from_all = [
        e.name for e in role.exchanges if not e.needs_representations or e.owned_part is not None or e.has_batch_hook
    ]
    uploaded = [name for name in from_all if name in role.uploading]
    if role.turns is not None and not shareable.all():
        raise ConfigurationError(
            f"learner {who} has samples that are never to be shared, and split learning sends the cut layer's output "
            f"of every sample; choose another method, such as representation-sharing"
        )
    if uploaded and not shareable.all():
        raise ConfigurationError(
            f"learner {who} has samples that are never to be shared, and {uploaded[0]!r} shares what was learned from "
            f"all of them; leave it out of the learner's group with exchanges = [...] or uploads = [...], or choose "
            f"another method"
        )
    return shareable


def class_number(data: Dataset, name: int | str, setting: str = "never_share") -> int:
    """A class or label by its number or its name; setting: where it is named."""
    if data.kind == "regression":
        raise ConfigurationError(
            f"{setting} names {name!r}, and data set {data.name!r} is for regression, which has no classes; mark the "
            f"samples themselves: Dataset.from_arrays(..., shareable=...)"
        )
    if isinstance(name, str) and name in data.labels:
        return data.labels.index(name)
    if isinstance(name, str) and not name.isdecimal():
        raise UnknownName("class", name, data.labels or map(str, range(data.classes)), of=f"data {data.name!r}")
    name = int(name)
    if not 0 <= name < data.classes:
        raise ConfigurationError(
            f"{setting} names class {name}; data {data.name!r} has classes 0 to {data.classes - 1}"
        )
    return name
