"""The learners' training data: a data set split among learners by a partition, then changed by their shifts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset
from consilience.data.heterogeneity import HeterogeneityCase
from consilience.data.local_shifts import (
    DataOverride,
    LearnerShift,
    apply_common_label_shifts,
    case_with_overrides,
    learner_shifts,
    shift_strengths,
)
from consilience.data.partition import Indices, parse_partition, partition_samples
from consilience.data.shifts import ConceptShift, parse_shifts
from consilience.errors import ConfigurationError
from consilience.kinds import kind_of
from consilience.randomness import seed_of
from consilience.task import SINGLE_LABEL, Target


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class LocalDatasets:
    """The training samples of all learners. Arrays that no shift changes are the data set's own, not copies."""

    inputs: NDArray[np.float32]  # (n, *shape) after the shifts
    targets: NDArray[Any]  # (n,) labels after the shifts, or what is predicted where it is no class
    original_targets: NDArray[Any]  # (n,) labels of the data set
    parts: list[Indices]  # sorted indices of each learner's samples
    strength: NDArray[np.float64]  # (learners,) of the feature shifts, 0 to 1; above 1 for shifts of single learners
    case: HeterogeneityCase
    classes: int
    kinds: Indices | None = None
    """(n,) what stands for the input when distributions are compared: a text's last character; None: its class."""
    target: Target = SINGLE_LABEL

    def class_counts(self) -> Indices:
        """How many samples of each class, label or bin each learner has, (learners, groups)."""
        kind = kind_of(self.target)
        return np.stack([kind.counts(self.target, self.classes, self.targets[part]) for part in self.parts])

    def in_group(self, group: int, part: Indices) -> Indices:
        """Those of some samples that are in a group."""
        return part[kind_of(self.target).in_groups(self.target, self.targets[part], [group])]

    def as_classes(self) -> LocalDatasets:
        """The same with a class for each sample: its set of labels, or its bin."""
        if self.target == SINGLE_LABEL:
            return self
        strata = kind_of(self.target).strata(self.target, self.targets)
        return replace(self, targets=strata, original_targets=strata)


def make_local_datasets(
    data: Dataset,
    learners: int,
    *,
    partition: str = "iid",
    shift: str = "none",
    seed: int,
    overrides: Mapping[int, DataOverride] | None = None,
) -> LocalDatasets:
    """Split the training samples among learners by `partition`, then apply `shift`.

    A single learner gets all samples unchanged; with "owners", those of one owner. Which samples a learner gets does
    not depend on the shift, except for an ambiguous one, which changes labels before the partition. overrides: learners
    with a fixed number of samples, drawn from all before the rest is split among the others, or with another shift.
    """
    by_owner = parse_partition(partition).word == "owners"  # a misspelled setting is refused, used or not
    own = overrides or {}
    shifts = learner_shifts(learners, shift, own)
    if learners == 1:
        partition, shift = "iid", "none"
    _refuse_feature_shift(data, shifts)
    _refuse_label_shift(data, shift, own)
    targets = apply_common_label_shifts(data.targets, data.classes, shift, seed)
    parts = _assign(targets, data, learners, "owners" if by_owner else partition, seed, own)
    return LocalDatasets(
        inputs=_shift_inputs(data.inputs, parts, shifts, seed),
        targets=_flip_labels(_shift_labels(targets, data, parts, shifts, seed), data.classes, parts, own),
        original_targets=data.targets,
        parts=parts,
        strength=shift_strengths(shifts),
        case=case_with_overrides(partition, shift, data.groups, learners, own),
        classes=data.classes,
        kinds=data.inputs[:, -1].astype(np.int64) if data.alphabet else None,
        target=data.target,
    )


def _refuse_label_shift(data: Dataset, shift: str, own: Mapping[int, DataOverride]) -> None:
    """Refuse to change labels where a sample does not have one class."""
    if data.target == SINGLE_LABEL:
        return
    for text in (shift, *(each.shift or "none" for each in own.values())):
        words = [word for word, each in parse_shifts(text).items() if isinstance(each, ConceptShift)]
        if words:
            raise ConfigurationError(
                f"shift {words[0]!r} changes the classes of samples, and data set {data.name!r} is for {data.kind}; "
                f"use a shift of inputs, such as noise(0.5), or a partition, such as dirichlet(0.3)"
            )
    if any(each.flips_labels for each in own.values()):
        raise ConfigurationError(
            f"attack 'label-flip' changes the classes of samples, and data set {data.name!r} is for {data.kind}; use "
            f"an attack on uploads, such as sign-flip"
        )


def _refuse_feature_shift(data: Dataset, shifts: list[LearnerShift]) -> None:
    """Refuse to change the values of inputs that are character codes, which are names and not amounts, or fields."""
    words = [word for mine in shifts for word in mine.features]
    if words and data.stream is not None:
        raise ConfigurationError(
            f"shift {words[0]!r} changes the values of inputs, and those of data set {data.name!r} are streamed; use a "
            f"shift of labels, or change samples in the data set's transform"
        )
    if words and (data.alphabet or data.fields is not None):
        what = "codes of characters" if data.fields is None else f"the fields {data.fields.describe()}"
        raise ConfigurationError(
            f"shift {words[0]!r} changes the values of inputs, and those of data set {data.name!r} are {what}; use a "
            f"shift of labels, or none"
        )


def _assign(
    targets: Indices,
    data: Dataset,
    learners: int,
    partition: str,
    seed: int,
    overrides: Mapping[int, DataOverride],
) -> list[Indices]:
    """Sorted indices of each learner's samples; samples may be left over where every learner has a fixed number."""
    generator = np.random.default_rng(seed_of("partition", seed))
    fixed = {who: each.samples for who, each in sorted(overrides.items()) if each.samples is not None}
    owners, names = data.owners, data.owner_names
    if data.target != SINGLE_LABEL:
        targets = data.strata
    if not fixed:
        return partition_samples(targets, learners, partition, generator, owners=owners, owner_names=names)
    others = [who for who in range(learners) if who not in fixed]
    _refuse_too_many(fixed, len(targets), len(others), overrides)
    order = np.random.default_rng(seed_of("public", seed)).permutation(len(targets))
    *drawn, rest = np.split(order, np.cumsum(list(fixed.values())))
    rest = np.sort(rest)
    rest_owners = None if owners is None else owners[rest]
    parts = (
        partition_samples(targets[rest], len(others), partition, generator, owners=rest_owners, owner_names=names)
        if others
        else []
    )
    found = dict(zip(fixed, map(np.sort, drawn), strict=True))
    found |= {who: rest[part] for who, part in zip(others, parts, strict=True)}
    return [found[who] for who in range(learners)]


def _refuse_too_many(
    fixed: Mapping[int, int], samples: int, others: int, overrides: Mapping[int, DataOverride]
) -> None:
    """Refuse fixed numbers of samples that leave less than one sample for each other learner."""
    asked, largest = sum(fixed.values()), max(fixed, key=lambda who: fixed[who])
    if asked > samples - others:
        together = f", {asked} for {len(fixed)} learners," if len(fixed) > 1 else ","
        raise ConfigurationError(
            f"{overrides[largest].setting} is {fixed[largest]}{together} and there are {samples} training samples for "
            f"it and {others} learners; use fewer"
        )


def _shift_labels(
    targets: Indices, data: Dataset, parts: list[Indices], shifts: list[LearnerShift], seed: int
) -> Indices:
    """Labels, (n,), after the learners' shifts; a shift of one learner alone starts from the data set's labels."""
    original = data.targets
    if not any(mine.changes_labels or (mine.own and targets is not original) for mine in shifts):
        return targets
    changed = targets.copy()
    for who, (part, mine) in enumerate(zip(parts, shifts, strict=True)):
        changed[part] = mine.shift_labels((original if mine.own else targets)[part], data.classes, seed, who)
    return changed


def _flip_labels(
    targets: Indices, classes: int, parts: list[Indices], overrides: Mapping[int, DataOverride]
) -> Indices:
    """Labels, (n,), with those of the learners that label wrongly turned round: c becomes C - 1 - c."""
    flipping = [who for who, each in overrides.items() if each.flips_labels]
    if not flipping:
        return targets
    changed = targets.copy()
    for who in flipping:
        changed[parts[who]] = classes - 1 - targets[parts[who]]
    return changed


def _shift_inputs(
    inputs: NDArray[np.float32], parts: list[Indices], shifts: list[LearnerShift], seed: int
) -> NDArray[np.float32]:
    """Inputs, (n, *shape), after the learners' shifts."""
    if not any(mine.features for mine in shifts):
        return inputs
    changed = inputs.copy()
    for who, (part, mine) in enumerate(zip(parts, shifts, strict=True)):
        if mine.features and mine.strength:
            changed[part] = mine.shift_inputs(inputs[part], seed, who)
    return changed
