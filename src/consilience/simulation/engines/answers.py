"""The answers that learners hold: one store, which the round fills and the engines read.

Answers are numbered. Many learners hold the same answer, and some hold an older one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from consilience.channels import Answer
from consilience.exchanges.base import Received

Held = Mapping[str, np.ndarray]
"""Numbers of answers by exchange, one per row; -1 where a row has none."""
Batches = Mapping[int, Answer]
"""Answers in the batches they came in, by the number of each batch's first answer."""


class AnswerStore:
    """Numbered answers, and which learner holds which. Answers come in batches of consecutive numbers."""

    def __init__(self, exchanges: Sequence[Sequence[str]], rows: Sequence[int]) -> None:
        self.batches: dict[int, Answer] = {}
        self.held = [
            {name: np.full(n, -1, dtype=np.int64) for name in names} for names, n in zip(exchanges, rows, strict=True)
        ]
        self.next = 0

    def none_new(self) -> list[dict[str, np.ndarray]]:
        """For each cohort, by exchange: no row has a new answer."""
        return [{name: np.full_like(numbers, -1) for name, numbers in cohort.items()} for cohort in self.held]

    def add(self, batch: Answer) -> int:
        """Store a batch of answers, and return the number of its first one."""
        number, self.next = self.next, self.next + len(batch)
        self.batches[number] = batch
        return number

    def hold(self, fresh: Sequence[Held]) -> None:
        """From now on, learners hold these answers; answers that are no longer held are dropped."""
        for held, new in zip(self.held, fresh, strict=True):
            for name, numbers in new.items():
                held[name] = np.where(numbers >= 0, numbers, held[name])
        self._drop_unused()

    def held_by(self, cohort: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Numbers of the answers that some rows hold, by exchange."""
        return {name: numbers[rows] for name, numbers in self.held[cohort].items()}

    def versions(self, numbers: np.ndarray) -> np.ndarray:
        """Versions of the moving mean that answers came from."""
        firsts = np.fromiter(self.batches, dtype=np.int64)  # in the order of their numbers
        versions = np.array([batch.version for batch in self.batches.values()])
        found: np.ndarray = versions[np.searchsorted(firsts, numbers, side="right") - 1]
        return found

    def counts(self, numbers: np.ndarray) -> np.ndarray:
        """The counts of answers of one channel, (answers, ...)."""
        firsts = np.fromiter(self.batches, dtype=np.int64)
        batch = np.searchsorted(firsts, numbers, side="right") - 1
        found: dict[int, np.ndarray] = {}
        for b in np.unique(batch):
            each = torch.as_tensor(self.batches[int(firsts[b])].count).numpy(force=True)
            found |= {int(i): each[numbers[i] - firsts[b]] for i in np.flatnonzero(batch == b)}
        return np.stack([found[i] for i in range(len(numbers))])

    def _drop_unused(self) -> None:
        held = np.unique([n for cohort in self.held for numbers in cohort.values() for n in np.unique(numbers)])
        unused = [
            first
            for first, batch in self.batches.items()
            if np.searchsorted(held, first) == np.searchsorted(held, first + len(batch))
        ]
        for first in unused:
            del self.batches[first]


def received(batches: Batches, number: int) -> Received:
    """One learner's answer by its number."""
    firsts = sorted(batches)
    first = firsts[bisect_right(firsts, number) - 1]
    answer = batches[first][number - first]
    return Received(answer.tensors, answer.count, torch.ones((), dtype=torch.bool, device=answer.count.device))
