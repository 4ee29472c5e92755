"""When something that takes time itself is due again."""

from __future__ import annotations

import pytest

from consilience.simulation.records.timing import PacedWork


@pytest.mark.parametrize(("takes", "then"), [(1.0, 30.0), (3.0, 30.0), (10.0, 90.0), (1000.0, 600.0)])
def test_what_takes_long_is_done_less_often(takes: float, then: float) -> None:
    """By hand: every 30 s, and for a tenth of the time at most; ten minutes at the latest."""
    clock = [100.0]
    saving = PacedWork(seconds=30, share=0.1, now=lambda: clock[0])
    assert saving.due
    with saving.timed():
        clock[0] += takes
    clock[0] += then - 0.01
    assert not saving.due
    clock[0] += 0.02
    assert saving.due
