"""The learners' test data: common test samples, changed by each learner's shift as its training samples are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset
from consilience.data.local_shifts import DataOverride, apply_common_label_shifts, learner_shifts
from consilience.data.raw_dataset import balanced_order
from consilience.kinds import kind_of
from consilience.task import SINGLE_LABEL, Target

_SEED = 2**31  # no run has this seed by default
_MAX_BYTES, _MIN_SAMPLES = 2**28, 50  # of all learners' test inputs together; samples each learner has in any case


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class LocalTestSets:
    """Test samples of each learner, with its shift of inputs and labels."""

    inputs: NDArray[np.float32]  # (learners, samples, *shape), or (1, ...) where inputs are the same for all
    targets: NDArray[Any]  # (learners, samples) or (learners, samples, labels)
    classes: int
    target: Target = SINGLE_LABEL

    def totals(self) -> NDArray[np.float64]:
        """What a score needs of the test samples of each learner, (learners, groups, sums)."""
        kind = kind_of(self.target)
        return np.stack([kind.totals(self.target, self.classes, mine) for mine in self.targets])


def local_test_sets(
    data: Dataset, learners: int, *, shift: str, most: int = 1000, overrides: Mapping[int, DataOverride] | None = None
) -> LocalTestSets | None:
    """At most `most` test samples with each learner's shift; None where nothing is shifted.

    There are fewer where learners are many. Classes are balanced, and the samples are the same for every seed.
    """
    shifts = learner_shifts(learners, shift, overrides or {})
    if not any(mine.features or mine.concepts for mine in shifts):
        return None
    copies = learners if any(mine.features for mine in shifts) else 1
    room = max(_MIN_SAMPLES, _MAX_BYTES // (copies * data.test_inputs[0].nbytes))
    chosen = np.sort(
        balanced_order(kind_of(data.target).strata(data.target, data.test_targets), _SEED)[: min(most, room)]
    )
    originals, labels = data.test_inputs[chosen], data.test_targets[chosen]
    common = apply_common_label_shifts(labels, data.classes, shift if learners > 1 else "none", _SEED)
    inputs = np.empty((copies, *originals.shape), dtype=np.float32)
    targets = np.empty((learners, *labels.shape), dtype=labels.dtype)
    for who, mine in enumerate(shifts):  # with the draws of learner 0, so that learners differ by their shifts alone
        targets[who] = mine.shift_labels(labels if mine.own else common, data.classes, _SEED, 0)
        if who < copies:
            inputs[who] = mine.shift_inputs(originals, _SEED, 0)
    return LocalTestSets(inputs, targets, data.classes, data.target)
