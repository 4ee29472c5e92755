"""Copies rows of a cohort's state into tensors with fixed addresses, and back."""

from __future__ import annotations

import numpy as np
import torch

from consilience.channels import as_slice
from consilience.learner.state import LearnerState


class RowCopies:
    """The states of some rows of a cohort, copied into `state`."""

    def __init__(self, cohort: LearnerState, rows: int, device: torch.device) -> None:
        self.state = cohort.stacked_empty(rows, device)
        self.rows = np.zeros(0, dtype=np.int64)
        self._home = cohort.step.device
        self._index: slice | torch.Tensor = slice(0)

    def choose(self, rows: np.ndarray) -> None:
        """Copy these rows from now on; rows in one piece are copied without another copy in between."""
        where = as_slice(rows)
        self.rows = rows
        self._index = where if isinstance(where, slice) else torch.from_numpy(rows).to(self._home)

    def copy_in(self, cohort: LearnerState) -> None:
        """Copy the rows from the cohort."""
        if isinstance(self._index, slice):
            torch._foreach_copy_(self.state.tensors(), cohort.rows(self._index).tensors())
            return
        for mine, stacked in zip(self.state.tensors(), cohort.tensors(), strict=True):
            if mine.device == self._home:
                torch.index_select(stacked, 0, self._index, out=mine)
            else:
                mine.copy_(stacked.index_select(0, self._index))

    def copy_out(self, cohort: LearnerState, count: int) -> None:
        """Copy the first `count` rows back into the cohort; the others are padding."""
        mine = self.state.rows(slice(count))
        if isinstance(self._index, slice):
            torch._foreach_copy_([into[:count] for into in cohort.rows(self._index).tensors()], mine.tensors())
            return
        moved = mine.to(self._home)  # all are moved before any is changed
        cohort.replace_rows(self._index[:count], moved)
