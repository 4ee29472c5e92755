"""The answers learners hold, numbered: many learners hold the same one, and some an older one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.channels import Answer

Fresh = Sequence[Mapping[str, np.ndarray]]
"""New answers: for each cohort, by exchange, a number for every row, -1 where there is nothing new."""


class Answers:
    """Which learner holds which answer. Answers come in batches, and their numbers run on within one."""

    def __init__(self, exchanges: list[list[str]], rows: list[int]) -> None:
        self.kept: dict[int, Answer] = {}  # by the number of the first in the batch
        self.held = [
            {name: np.full(n, -1, dtype=np.int64) for name in names} for names, n in zip(exchanges, rows, strict=True)
        ]
        self.next = 0

    def nothing_new(self) -> list[dict[str, np.ndarray]]:
        """No row has heard anything."""
        return [{name: np.full_like(numbers, -1) for name, numbers in cohort.items()} for cohort in self.held]

    def keep(self, batch: Answer) -> int:
        """Number a new batch of answers; the first one's number comes back."""
        number, self.next = self.next, self.next + len(batch)
        self.kept[number] = batch
        return number

    def hold(self, fresh: Fresh) -> None:
        """Learners hold these from now on."""
        for held, heard in zip(self.held, fresh, strict=True):
            for name, numbers in heard.items():
                held[name] = np.where(numbers >= 0, numbers, held[name])

    def of(self, cohort: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The answer numbers of some rows, by exchange."""
        return {name: numbers[rows] for name, numbers in self.held[cohort].items()}

    def versions(self, numbers: np.ndarray) -> np.ndarray:
        """Of the moving mean the answers came from."""
        firsts = np.fromiter(self.kept, dtype=np.int64)  # kept in the order of their numbers
        versions = np.array([batch.version for batch in self.kept.values()])
        found: np.ndarray = versions[np.searchsorted(firsts, numbers, side="right") - 1]
        return found

    def forget(self) -> tuple[int, ...]:
        """Let go of batches of which nobody holds anything any more, and say which."""
        held = np.unique([n for cohort in self.held for numbers in cohort.values() for n in np.unique(numbers)])
        gone = tuple(
            first
            for first, batch in self.kept.items()
            if np.searchsorted(held, first) == np.searchsorted(held, first + len(batch))
        )
        for first in gone:
            del self.kept[first]
        return gone

    def state(self) -> tuple[dict[str, object], dict[str, object]]:
        """Everything a restart needs: arrays, and a few numbers."""
        arrays: dict[str, object] = {}
        for number, batch in self.kept.items():
            arrays |= {f"answers.{number}.{k}": v for k, v in batch.tensors.items()}
            arrays[f"counts.{number}"] = batch.count
        for i, cohort in enumerate(self.held):
            arrays |= {f"held.{i}.{name}": numbers for name, numbers in cohort.items()}
        return arrays, {"next": self.next, "versions": {str(n): batch.version for n, batch in self.kept.items()}}
