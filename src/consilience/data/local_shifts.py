"""What a data set becomes in each learner's hands: how many samples it has, and what shifts do to them there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.data.heterogeneity import HeterogeneityCase, heterogeneity_case
from consilience.data.partition import Indices
from consilience.data.shifts import ConceptShift, FeatureShift, shifts_of
from consilience.randomness import purpose_key, seed_of

_TOSSED = {"ambiguous", "prefer"}


@dataclass(frozen=True)
class DataOverride:
    """What a learner has of its own, where it is not dealt what all others are."""

    samples: int | None = None
    """So many, drawn from all."""
    shift: str | None = None
    """At full strength, instead of everybody's."""
    named: str = "samples"
    """The setting that says how many samples it has."""


@dataclass(frozen=True)
class LearnerShift:
    """What happens to a learner's samples."""

    features: Mapping[str, FeatureShift]
    concepts: Mapping[str, ConceptShift]
    strength: float
    own: bool = False
    """Whether the shifts are its own: what concerns everybody's labels at once then leaves its labels as they came."""

    def moved(self, inputs: NDArray[np.float32], seed: int, who: int) -> NDArray[np.float32]:
        """Its inputs, (n, *shape), after its shifts in the order they were written."""
        for word, shift in self.features.items() if self.strength else ():
            inputs = shift.inputs(inputs, self.strength, _generator(word, seed, who))
        return inputs

    @property
    def renames(self) -> bool:
        """Whether its labels become others than those it was dealt."""
        return any(self.own or not shift.before_partition for shift in self.concepts.values())

    def renamed(self, targets: Indices, classes: int, seed: int, who: int) -> Indices:
        """Its labels, (n,), after its shifts in the order they were written."""
        for word, shift in self.concepts.items():
            if self.own or not shift.before_partition:
                targets = shift.labels(targets, classes, self.strength, _generator(word, seed, who))
        return targets


def learner_shifts(learners: int, shift: str, overrides: Mapping[int, DataOverride]) -> list[LearnerShift]:
    """Everybody's hands. A shift grows evenly over the learners, and a single one has none but its own."""
    shifts = {text: _shifts(text) for text in {shift, *(each.shift or "none" for each in overrides.values())}}
    common = shifts[shift] if learners > 1 else ({}, {})
    own = [overrides[who].shift if who in overrides else None for who in range(learners)]
    return [
        LearnerShift(*common, who / max(1, learners - 1))
        if text is None
        else LearnerShift(*shifts[text], 1.0, own=True)
        for who, text in enumerate(own)
    ]


def _shifts(text: str) -> tuple[dict[str, FeatureShift], dict[str, ConceptShift]]:
    shifts = {word: each for word, each in shifts_of(text).items() if not each.idle}
    concepts = {word: each for word, each in shifts.items() if isinstance(each, ConceptShift)}
    return {word: each for word, each in shifts.items() if isinstance(each, FeatureShift)}, concepts


def apply_common_label_shifts(targets: Indices, classes: int, shift: str, seed: int) -> Indices:
    """Labels, (n,), after the shifts that concern everybody's samples at once."""
    for word, each in _shifts(shift)[1].items():
        if each.before_partition:
            targets = each.labels(targets, classes, 1.0, _generator(word, seed, 0))
    return targets


def shift_strengths(hands: list[LearnerShift]) -> NDArray[np.float64]:
    """How strongly inputs are shifted, (learners,): 0 to 1; above 1, one number for each shift that is some's own."""
    kinds = [mine.features for mine in hands if not mine.own][:1]
    for mine in hands:
        kinds += [] if mine.features in kinds else [mine.features]
    return np.array([(mine.strength + kinds.index(mine.features)) * bool(mine.features) for mine in hands])


def case_with_overrides(
    partition: str, shift: str, classes: int, learners: int, overrides: Mapping[int, DataOverride]
) -> HeterogeneityCase:
    """In which ways learners' data differ, those with a shift of their own among them."""
    own = {each.shift for each in overrides.values() if each.shift is not None}
    everybody = sum(each.shift is not None for each in overrides.values()) == learners
    if everybody and len(own) == 1:
        return heterogeneity_case(partition, "none", classes)  # all do the same to their samples
    case = heterogeneity_case(partition, "none" if everybody else shift, classes)
    for other in own:
        theirs = heterogeneity_case(partition, other, classes)
        # Where not all toss coins, those who do call the same input something else.
        tossed = classes > 1 and bool(_TOSSED & _shifts(other)[1].keys())
        case = HeterogeneityCase(
            inputs=case.inputs or theirs.inputs,
            labels_given_inputs=case.labels_given_inputs or theirs.labels_given_inputs or tossed,
            labels=case.labels or theirs.labels,
            inputs_given_labels=case.inputs_given_labels or theirs.inputs_given_labels or tossed,
        )
    return case


def _generator(word: str, seed: int, who: int) -> np.random.Generator:
    """One for each shift and learner, so that neither a further shift nor another learner changes what is drawn."""
    return np.random.default_rng(seed_of("shift", seed, purpose_key(word), who))
