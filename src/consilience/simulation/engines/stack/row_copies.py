"""Copies rows of a cohort's state into tensors with fixed addresses, and back."""

from __future__ import annotations

import numpy as np
import torch

from consilience.learner.state import LearnerState


class RowCopies:
    """The states of some rows of a cohort, copied into `state`."""

    def __init__(self, cohort: LearnerState, rows: int, device: torch.device) -> None:
        self.state = cohort.stacked_empty(rows, device)
        self.rows = np.zeros(0, dtype=np.int64)
        self._home = cohort.step.device
        self._index = torch.zeros(0, dtype=torch.int64)
        self._all_rows = False

    def choose(self, rows: np.ndarray, members: int) -> None:
        """Copy these rows from now on. members: the number of rows of the cohort."""
        self.rows, self._index = rows, torch.from_numpy(rows).to(self._home)
        self._all_rows = np.array_equal(rows, np.arange(members))

    def copy_in(self, cohort: LearnerState) -> None:
        """Copy the rows from the cohort."""
        tensors = cohort.tensors()
        chosen = tensors if self._all_rows else [tensor.index_select(0, self._index) for tensor in tensors]
        torch._foreach_copy_(self.state.tensors(), chosen)

    def copy_out(self, cohort: LearnerState, count: int) -> None:
        """Copy the first `count` rows back into the cohort; the others are padding."""
        if self._all_rows:
            torch._foreach_copy_(cohort.tensors(), self.state.tensors())
            return
        moved = self.state.map(lambda tensor: tensor[:count].to(self._home))  # all are moved before any is changed
        cohort.replace_rows(self._index[:count], moved)
