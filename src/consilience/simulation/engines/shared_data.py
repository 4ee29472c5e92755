"""The data of a simulation: one copy that all learners read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets


@dataclass
class SharedData:
    """Training and test samples, on the device."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    own_inputs: Tensor  # (learners, samples, ...) test samples as each learner has them, or empty
    own_targets: Tensor

    def tests(self, learner: Tensor | int | None = None) -> tuple[Tensor, Tensor]:
        """The common test samples and classes, or those of a learner, or of several stacked."""
        if learner is None:
            return self.test_inputs, self.test_targets
        several = len(self.own_inputs) > 1
        return self.own_inputs[learner if several else 0 * learner], self.own_targets[learner]

    def held_out(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        """Training samples and targets by their positions, of any shape; padding where a position is below 0."""
        at = torch.from_numpy(positions).to(self.inputs.device)
        real = at.clamp(min=0)
        targets = self.targets[real]
        absent = (at < 0).reshape(at.shape + (1,) * (targets.ndim - at.ndim))
        # What the kinds of tasks take for no sample: see `Kind.padding`.
        padding = torch.full_like(targets, math.nan if targets.is_floating_point() else -1)
        return self.inputs[real], torch.where(absent, padding, targets)


def data_arrays(data: Dataset, own: LocalTestSets | None) -> dict[str, NDArray[Any]]:
    """The fields of `SharedData` before they are on a device."""
    nothing = np.zeros((0, 0), dtype=np.float32), np.zeros((0, 0), dtype=np.int64)
    inputs, targets = nothing if own is None else (own.inputs, own.targets)
    shared = {key: getattr(data, key) for key in ("inputs", "targets", "test_inputs", "test_targets")}
    return shared | {"own_inputs": inputs, "own_targets": targets}


def data_dtype(array: NDArray[Any], dtype: torch.dtype) -> torch.dtype:
    """The type an array has on the device: the learners' for numbers, int64 for classes."""
    return dtype if array.dtype.kind == "f" else torch.int64


def on_device(arrays: dict[str, NDArray[Any]], device: torch.device, dtype: torch.dtype) -> SharedData:
    """The data on a device."""
    return SharedData(**{k: torch.from_numpy(a).to(device, data_dtype(a, dtype)) for k, a in arrays.items()})
