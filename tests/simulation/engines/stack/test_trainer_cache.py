"""Numbers of rows that recorded work is used for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from consilience.simulation.engines.stack.trainer_cache import TrainerCache


def cache(members: int, most: int) -> TrainerCache:
    """Of a cohort of so many learners, of which `most` are trained at once."""
    cohort: Any = SimpleNamespace(plan=SimpleNamespace(members=range(members)))
    memory: Any = SimpleNamespace(rows=[most])
    make: Any = None
    return TrainerCache([cohort], memory, make)


def test_groups_of_nearly_one_size_use_one_trainer() -> None:
    """3,334, 3,334 and 3,332 rows would need two trainers, with a group's memory each."""
    for count, size in ((3334, 3334), (3332, 3334), (100, 100)):
        entries = np.arange(count)
        padded = cache(10_000, 3334).padded(0, entries)
        assert len(padded) == size and padded[:count].tolist() == entries.tolist() and not padded[count:].any()


def test_a_cohort_that_fits_at_once_is_not_padded() -> None:
    assert len(cache(10, 10).padded(0, np.arange(10))) == 10
    assert len(cache(100, 100).padded(0, np.arange(95))) == 95
