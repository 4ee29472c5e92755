"""The data of a simulation, where every learner's hands find it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets


@dataclass
class Data:
    """The data everybody sees."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    own_inputs: Tensor  # (learners, samples, ...) test samples as each learner has them, or nothing
    own_targets: Tensor

    def tests(self, learner: Tensor | int | None = None) -> tuple[Tensor, Tensor]:
        """Everybody's test samples and classes, or those of a learner, or of some side by side."""
        if learner is None:
            return self.test_inputs, self.test_targets
        several = len(self.own_inputs) > 1
        return self.own_inputs[learner if several else 0 * learner], self.own_targets[learner]


def data_arrays(data: Dataset, own: LocalTestSets | None) -> dict[str, NDArray[Any]]:
    """The data everybody sees, before it is where they see it: by the names of `Data`."""
    nothing = np.zeros((0, 0), dtype=np.float32), np.zeros((0, 0), dtype=np.int64)
    inputs, targets = nothing if own is None else (own.inputs, own.targets)
    shared = {key: getattr(data, key) for key in ("inputs", "targets", "test_inputs", "test_targets")}
    return shared | {"own_inputs": inputs, "own_targets": targets}
