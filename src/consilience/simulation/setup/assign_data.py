"""Who gets which samples, and which of them may be shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from consilience.config.config import Config
from consilience.data import Dataset, class_counts
from consilience.data.local_datasets import LocalDatasets, make_local_datasets
from consilience.data.local_shifts import DataOverride
from consilience.data.local_test_sets import LocalTestSets, local_test_sets
from consilience.data.partition import parse_partition
from consilience.errors import ConfigurationError, UnknownName
from consilience.method import Method, Role
from consilience.simulation.engines.cohort import Members
from consilience.simulation.setup.participants import Participant
from consilience.simulation.setup.variants import Variants


@dataclass(frozen=True)
class AssignedData:
    """The training set as learners have it, who has which samples, and the test samples."""

    train: Dataset  # as learners have it: one copy for each seed where learners change samples
    parts: list[list[np.ndarray]]  # of each federation and learner: positions of its samples in the training set
    counts: np.ndarray  # (federations, learners, classes) of a learner's samples
    test_counts: np.ndarray  # (classes,)
    local_test_sets: LocalTestSets | None  # test samples as learners have theirs; None where all learners have the same
    local_datasets: tuple[LocalDatasets, ...]  # how the data was split, one for each seed

    @cached_property
    def shares(self) -> np.ndarray:
        """Class shares of each learner's samples, (federations, learners, classes)."""
        shares: np.ndarray = self.counts / self.counts.sum(-1, keepdims=True)
        return shares

    @property
    def ranges(self) -> np.ndarray:
        """Start and stop of each federation's samples in the training set, (federations, 2)."""
        size, seeds = len(self.local_datasets[0].targets), len(self.local_datasets)
        copied = len(self.train.targets) > size
        first = np.arange(len(self.parts)) % seeds * size * copied
        return np.stack([first, first + size], axis=1)


def assign_data(config: Config, method: Method, data: Dataset, variants: Variants) -> AssignedData:
    """Split the data between the learners of every federation; variants have the same split."""
    seeds = range(config.federation.seed, config.federation.seed + config.federation.seeds)
    local_datasets = tuple(split_for_seed(config, method, data, seed) for seed in seeds)
    train, parts = concat_training_sets(data, local_datasets, variants.learners)
    overrides = {} if method.pooled else data_overrides(config)
    return AssignedData(
        train=train,
        parts=parts * variants.count,
        counts=np.stack([class_counts(train.targets, p, data.classes) for p in parts] * variants.count),
        test_counts=np.bincount(data.test_targets, minlength=data.classes),
        local_test_sets=local_test_sets(data, variants.learners, shift=config.federation.shift, overrides=overrides),
        local_datasets=local_datasets,
    )


def split_for_seed(config: Config, method: Method, data: Dataset, seed: int) -> LocalDatasets:
    """A seed's deal; for a pooled method only what happens to the data before it is pooled matters."""
    # Where everybody is one owner, samples of those who are not there are nobody's, pooled or not.
    owned = parse_partition(config.federation.partition).word == "owners"
    alone = method.pooled and config.federation.shift == "none" and not owned and not _group_overrides(config)
    learners, how = (1, "iid") if alone else (config.federation.learners, config.federation.partition)
    return make_local_datasets(
        data,
        learners,
        partition=how,
        shift=config.federation.shift,
        seed=seed,
        overrides={} if alone else data_overrides(config),
    )


def data_overrides(config: Config) -> dict[int, DataOverride]:
    """Learners with samples or a shift of their own; the one with the public samples is one of them."""
    found = _group_overrides(config)
    if config.federation.public is not None and config.federation.learners > 1:
        found[0] = replace(found.get(0, DataOverride()), samples=config.federation.public, setting="public")
    return found


def _group_overrides(config: Config) -> dict[int, DataOverride]:
    return {
        who: DataOverride(group.samples, group.shift, f"groups.{name}.samples")
        for who, (name, group) in config.groups_by_learner().items()
        if group.samples is not None or group.shift is not None
    }


def concat_training_sets(
    data: Dataset, local_datasets: Sequence[LocalDatasets], learners: int
) -> tuple[Dataset, list[list[np.ndarray]]]:
    """All seeds' deals over one training set: the data itself, or where learners change it one copy a seed."""
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
    )
    return copies, [[part + k * n for part in mine] for k, mine in enumerate(parts)]


def members_of(
    federations: Sequence[int],
    participants: Sequence[Participant],
    seeds: tuple[int, ...],
    parts: list[list[np.ndarray]],
    data: Dataset,
    host: int | None,
) -> Members:
    """Rows of a cohort, each of a federation, with their samples: their own, or the host's, the public set."""
    of = [
        host if participant.role.data == "public" and host is not None else participant.learner
        for participant in participants
    ]
    samples = [np.sort(parts[f][who]) for f, who in zip(federations, of, strict=True)]
    stops = np.cumsum([len(s) for s in samples])
    # Who contrasts samples with each other, or has the same ones as everybody, keeps its last batch as it is.
    alike = participants[0].role.data == "public" or participants[0].role.objective.compares_samples
    even = [alike or len({len(p) for p in parts[f]}) == 1 for f in range(len(seeds))]
    shared = [
        _shared(data, participant.learner, participant.role, mine, host)
        for participant, mine in zip(participants, samples, strict=True)
    ]
    marks = np.concatenate(shared)
    return Members(
        federation=np.array(federations),
        learner=np.array([participant.learner for participant in participants]),
        seed=np.array([seeds[f] for f in federations]),
        start=np.concatenate([[0], stops[:-1]]),
        stop=stops,
        even=np.array([even[f] for f in federations]),
        index=np.concatenate(samples),
        shared=None if marks.all() else marks,
    )


def may_share(data: Dataset, never_share: Sequence[int | str], samples: np.ndarray) -> np.ndarray:
    """Which samples are neither marked never to be shared nor of a class that is withheld, (samples,)."""
    marks = np.ones(len(samples), dtype=bool) if data.shareable is None else data.shareable[samples]
    found: np.ndarray = marks & ~np.isin(data.targets[samples], [_class(data, name) for name in never_share])
    return found


def _shared(data: Dataset, who: int, role: Role, samples: np.ndarray, host: int | None) -> np.ndarray:
    """Which of a learner's samples may enter what it puts up; refused where something would carry them all the same."""
    marks = may_share(data, role.never_share, samples)
    if role.data == "public":
        if who != host:  # whose classes these are not
            marks = may_share(data, (), samples)
        if not marks.all():
            raise ConfigurationError(
                f"{int((~marks).sum())} samples of the public set are marked never to be shared; let somebody else be "
                f"the host, or set public samples aside that are not"
            )
        return marks
    # What does not look at samples in the pass, moves a part by its gradients, or has a state that moves with the
    # batches is made of them all.
    telling = [
        e.name for e in role.exchanges if not e.needs_representations or e.owned_part is not None or e.has_batch_hook
    ]
    given = [name for name in telling if name in role.uploading]
    if given and not marks.all():
        raise ConfigurationError(
            f"learner {who} has samples that are never to be shared, and {given[0]!r} shares what was learned from all "
            f"of them; let its group leave it out with exchanges = [...] or uploads = [...], or take another method"
        )
    return marks


def _class(data: Dataset, name: int | str) -> int:
    """A class by its number or by what it is called."""
    if isinstance(name, str) and name in data.labels:
        return data.labels.index(name)
    if isinstance(name, str) and not name.isdecimal():
        raise UnknownName("class", name, data.labels or map(str, range(data.classes)), of=f"data {data.name!r}")
    name = int(name)
    if not 0 <= name < data.classes:
        raise ConfigurationError(
            f"never_share names class {name}; data {data.name!r} has classes 0 to {data.classes - 1}"
        )
    return name
