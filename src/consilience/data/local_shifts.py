"""What shifts do to each learner's samples, and learners whose data differ from the common settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.data.heterogeneity import HeterogeneityCase, heterogeneity_case
from consilience.data.partition import Indices
from consilience.data.shifts import ConceptShift, FeatureShift, parse_shifts
from consilience.randomness import purpose_key, seed_of

_RANDOM_LABELS = {"ambiguous", "prefer"}


@dataclass(frozen=True)
class DataOverride:
    """Settings of one learner's data that differ from the common partition and shift."""

    samples: int | None = None
    """How many samples it has, drawn from all; None: what the partition gives it."""
    shift: str | None = None
    """A shift of its own at full strength, in place of the common one."""
    setting: str = "samples"
    """The name of the setting that `samples` comes from, for error messages."""
    flips_labels: bool = False
    """Whether it labels class c as C - 1 - c, after all shifts."""


@dataclass(frozen=True)
class LearnerShift:
    """The shifts of one learner's samples, and how strong they are."""

    features: Mapping[str, FeatureShift]
    concepts: Mapping[str, ConceptShift]
    strength: float
    own: bool = False
    """Whether the learner has a shift of its own; the common shifts of labels then leave its labels unchanged."""

    def shift_inputs(self, inputs: NDArray[np.float32], seed: int, who: int) -> NDArray[np.float32]:
        """Its inputs, (n, *shape), after its shifts in the order they were given."""
        for word, shift in self.features.items() if self.strength else ():
            inputs = shift.inputs(inputs, self.strength, _generator(word, seed, who))
        return inputs

    @property
    def changes_labels(self) -> bool:
        """Whether a shift changes its labels after the partition."""
        return any(self.own or not shift.before_partition for shift in self.concepts.values())

    def shift_labels(self, targets: Indices, classes: int, seed: int, who: int) -> Indices:
        """Its labels, (n,), after its shifts in the order they were given."""
        for word, shift in self.concepts.items():
            if self.own or not shift.before_partition:
                targets = shift.labels(targets, classes, self.strength, _generator(word, seed, who))
        return targets


def learner_shifts(learners: int, shift: str, overrides: Mapping[int, DataOverride]) -> list[LearnerShift]:
    """Each learner's shift. The common one grows evenly over the learners; a single learner has only its own."""
    shifts = {text: _active_shifts(text) for text in {shift, *(each.shift or "none" for each in overrides.values())}}
    common = shifts[shift] if learners > 1 else ({}, {})
    own = [overrides[who].shift if who in overrides else None for who in range(learners)]
    return [
        LearnerShift(*common, who / max(1, learners - 1))
        if text is None
        else LearnerShift(*shifts[text], 1.0, own=True)
        for who, text in enumerate(own)
    ]


def _active_shifts(text: str) -> tuple[dict[str, FeatureShift], dict[str, ConceptShift]]:
    """Shifts of inputs and shifts of labels that change anything."""
    shifts = {word: each for word, each in parse_shifts(text).items() if not each.is_identity}
    concepts = {word: each for word, each in shifts.items() if isinstance(each, ConceptShift)}
    return {word: each for word, each in shifts.items() if isinstance(each, FeatureShift)}, concepts


def apply_common_label_shifts(targets: Indices, classes: int, shift: str, seed: int) -> Indices:
    """Labels, (n,), after the shifts that change all learners' labels together, before the partition."""
    for word, each in _active_shifts(shift)[1].items():
        if each.before_partition:
            targets = each.labels(targets, classes, 1.0, _generator(word, seed, 0))
    return targets


def shift_strengths(shifts: list[LearnerShift]) -> NDArray[np.float64]:
    """How strongly inputs are shifted, (learners,): 0 to 1 for the common shift, a number above 1 for each other."""
    kinds = [mine.features for mine in shifts if not mine.own][:1]
    for mine in shifts:
        kinds += [] if mine.features in kinds else [mine.features]
    return np.array([(mine.strength + kinds.index(mine.features)) * bool(mine.features) for mine in shifts])


def case_with_overrides(
    partition: str, shift: str, classes: int, learners: int, overrides: Mapping[int, DataOverride]
) -> HeterogeneityCase:
    """In which ways learners' data differ, given that some have shifts of their own."""
    own = {each.shift for each in overrides.values() if each.shift is not None}
    all_own = sum(each.shift is not None for each in overrides.values()) == learners
    if all_own and len(own) == 1:
        return heterogeneity_case(partition, "none", classes)  # all learners have the same shift
    case = heterogeneity_case(partition, "none" if all_own else shift, classes)
    for other in own:
        theirs = heterogeneity_case(partition, other, classes)
        # Where only some learners have random labels, p(y|x) differs between them and the others.
        random = classes > 1 and bool(_RANDOM_LABELS & _active_shifts(other)[1].keys())
        case = HeterogeneityCase(
            inputs=case.inputs or theirs.inputs,
            labels_given_inputs=case.labels_given_inputs or theirs.labels_given_inputs or random,
            labels=case.labels or theirs.labels,
            inputs_given_labels=case.inputs_given_labels or theirs.inputs_given_labels or random,
        )
    return case


def _generator(word: str, seed: int, who: int) -> np.random.Generator:
    """One for each shift and learner, so that neither a further shift nor another learner changes the draws."""
    return np.random.default_rng(seed_of("shift", seed, purpose_key(word), who))
