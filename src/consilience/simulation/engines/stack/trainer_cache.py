"""Stacked trainers kept ready: recorded work is for a fixed number of rows, and is used again with the same number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.stack.memory_budget import MemoryBudget
from consilience.simulation.engines.stack.stacked_trainer import StackedTrainer

MakeTrainer = Callable[[int, int, bool], StackedTrainer]
"""Makes a trainer for so many rows of a cohort; whether their learners have equally many samples."""
_MAX_TRAINERS = 8  # kept ready: those used last
_MAX_COUNTS = 3  # different numbers of rows of a cohort; beyond that, rows are padded
_NEARLY = 0.9  # of a group's size
_PADDED_SIZES = 8  # different sizes of trainers when rows are padded


class TrainerCache:
    """Trainers by cohort, number of rows, and whether learners have equally many samples."""

    def __init__(self, cohorts: list[Cohort], memory: MemoryBudget, make: MakeTrainer) -> None:
        self.cohorts, self.memory, self.make = cohorts, memory, make
        self.counts: list[set[int]] = [set() for _ in cohorts]
        self._trainers: dict[tuple[int, int, bool], StackedTrainer] = {}

    def __len__(self) -> int:
        return len(self._trainers)

    def get(self, cohort: int, rows: np.ndarray) -> StackedTrainer:
        """A trainer for these rows of a cohort."""
        members = self.cohorts[cohort].plan.members
        even = bool(members.even[rows[0]])
        key = cohort, len(rows), even
        if key not in self._trainers:
            while len(self._trainers) >= _MAX_TRAINERS:
                del self._trainers[next(iter(self._trainers))]
            self._trainers[key] = self.make(cohort, len(rows), even)
        self._trainers[key] = self._trainers.pop(key)  # the one used last
        return self._trainers[key]

    def padded(self, cohort: int, entries: np.ndarray) -> np.ndarray:
        """The entries; where their number changes from round to round, padded with repetitions of the first one.

        With few different numbers of rows, recorded work is used again. Results of the padding are not used. Groups of
        a cohort that is too large for one are nearly of one size, and are padded to it.
        """
        counts, members, most = self.counts[cohort], len(self.cohorts[cohort].plan.members), self.memory.rows[cohort]
        if _NEARLY * most < len(entries) < most < members:
            return np.concatenate([entries, np.full(most - len(entries), entries[0])])
        counts.add(len(entries))
        if len(counts) <= _MAX_COUNTS:
            return entries
        step = -(-members // _PADDED_SIZES)
        size = max(min(-(-len(entries) // step) * step, most), len(entries))
        return np.concatenate([entries, np.full(size - len(entries), entries[0])])

    def clear(self) -> None:
        """Free the memory of all trainers."""
        self._trainers.clear()
