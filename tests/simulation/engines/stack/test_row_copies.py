"""Rows of a cohort copied in and out, in one piece or scattered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from consilience.learner.state import LearnerState
from consilience.simulation.engines.stack.row_copies import RowCopies

CPU = torch.device("cpu")


def cohort(rows: int = 6) -> LearnerState:
    """States whose numbers say which row they are of."""
    numbers = torch.arange(rows, dtype=torch.float32)
    values = numbers[:, None].expand(-1, 3).clone()
    return LearnerState(values, values[:, :0], numbers.long(), optimizer={"moment": values * 10})


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [2, 3, 4], [5], [4, 1, 3], [3, 4, 3, 3]])
def test_rows_come_in_and_go_back(rows: list[int]) -> None:
    state, copies = cohort(), RowCopies(cohort(), len(rows), CPU)
    copies.choose(np.array(rows))
    copies.copy_in(state)
    assert copies.state.step.tolist() == rows
    assert copies.state.optimizer["moment"][:, 2].tolist() == [10.0 * row for row in rows]
    copies.state.parameters += 100
    assert state.parameters.max() < 10, "the cohort is unchanged until the work is done"
    count = len(set(rows))  # the rest is padding
    copies.copy_out(state, count)
    expected = [row + (100.0 if row in rows[:count] else 0.0) for row in range(6)]
    assert state.parameters[:, 0].tolist() == expected


def test_rows_in_one_piece_are_not_copied_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    state, copies = cohort(), RowCopies(cohort(), 3, CPU)
    copies.choose(np.array([2, 3, 4]))
    monkeypatch.setattr(LearnerState, "select", None)
    monkeypatch.setattr(LearnerState, "replace_rows", None)
    copies.copy_in(state)
    copies.copy_out(state, 2)
    assert copies.state.step.tolist() == [2, 3, 4]
