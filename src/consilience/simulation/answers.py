"""The answers learners hold, numbered: many learners hold the same one, and some an older one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consilience.channels import Answer

Fresh = Mapping[tuple[int, int], Mapping[str, int]]
"""New answers: (cohort, row) to answer numbers by exchange."""


class Answers:
    """Which learner holds which answer."""

    def __init__(self, exchanges: list[list[str]], rows: list[int]) -> None:
        self.kept: dict[int, Answer] = {}
        self.held = [
            {name: np.full(n, -1, dtype=np.int64) for name in names} for names, n in zip(exchanges, rows, strict=True)
        ]
        self.next = 0

    def keep(self, answer: Answer) -> int:
        """Number a new answer."""
        number, self.next = self.next, self.next + 1
        self.kept[number] = answer
        return number

    def hold(self, fresh: Fresh) -> None:
        """Learners hold these from now on."""
        for (cohort, row), numbers in fresh.items():
            for name, number in numbers.items():
                self.held[cohort][name][row] = number

    def of(self, cohort: int, row: int) -> dict[str, int]:
        """The answer numbers of one learner, by exchange."""
        return {name: int(numbers[row]) for name, numbers in self.held[cohort].items()}

    def version(self, number: int) -> int:
        """Of the moving mean an answer came from."""
        return self.kept[number].version

    def forget(self) -> tuple[int, ...]:
        """Let go of answers nobody holds any more, and say which."""
        held = {int(n) for cohort in self.held for numbers in cohort.values() for n in np.unique(numbers)}
        gone = tuple(n for n in self.kept if n not in held)
        for number in gone:
            del self.kept[number]
        return gone

    def state(self) -> tuple[dict[str, object], dict[str, object]]:
        """Everything a restart needs: arrays, and a few numbers."""
        arrays: dict[str, object] = {}
        for number, answer in self.kept.items():
            arrays |= {f"answers.{number}.{k}": v for k, v in answer.tensors.items()}
            arrays[f"counts.{number}"] = answer.count
        for i, cohort in enumerate(self.held):
            arrays |= {f"held.{i}.{name}": numbers for name, numbers in cohort.items()}
        return arrays, {"next": self.next, "versions": {str(n): a.version for n, a in self.kept.items()}}
