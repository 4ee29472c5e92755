"""The metrics of a run, summed over learners while they are read, so that memory does not grow with learners."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]


@dataclass
class RunMetrics:
    """The metrics of a run, summed over learners."""

    sums: dict[tuple[int, int], dict[str, list[float]]] = field(default_factory=dict)
    """By round and seed, for each metric: the number of learners that have it, the sum, and the sum of squares."""
    final: dict[tuple[int, int], float] = field(default_factory=dict)
    """The last accuracy by seed and learner."""
    final_local: dict[tuple[int, int], float] = field(default_factory=dict)
    """The last own accuracy by seed and learner."""
    seen: set[tuple[int, int, int]] = field(default_factory=set)
    group_of: Mapping[int, str] = field(default_factory=dict)
    """The group of each learner, if there are several groups."""
    groups: dict[str, RunMetrics] = field(default_factory=dict)
    """The metrics of each group of learners."""

    def add(self, round_: int, seed: int, learner: int, values: Mapping[str, float]) -> None:
        """Add a line; a repeated line is ignored."""
        if (round_, seed, learner) in self.seen:
            return
        self.seen.add((round_, seed, learner))
        cell = self.sums.setdefault((round_, seed), {})
        for name, value in values.items():
            known = cell.setdefault(name, [0, 0.0, 0.0])
            known[0] += 1
            known[1] += value
            known[2] += value * value
        if "accuracy" in values:
            self.final[seed, learner] = values["accuracy"]
        if "accuracy_own" in values:
            self.final_local[seed, learner] = values["accuracy_own"]
        if learner in self.group_of:
            self.groups.setdefault(self.group_of[learner], RunMetrics()).add(round_, seed, learner, values)

    @property
    def rounds(self) -> int:
        """The last recorded round."""
        return max((round_ for round_, _ in self.sums), default=0)

    @property
    def seeds(self) -> list[int]:
        """The recorded seeds."""
        return sorted({seed for _, seed in self.sums})

    @property
    def names(self) -> list[str]:
        """The recorded metrics, in the order of their first appearance."""
        return list(dict.fromkeys(name for cell in self.sums.values() for name in cell))

    def by_learner(self, final: Mapping[tuple[int, int], float]) -> list[list[float | None]]:
        """Final values of each seed, from the first to the last, one per learner; None if not known."""
        seeds, learners = self.seeds, 1 + max((learner for _, _, learner in self.seen), default=-1)
        return [
            [None if (value := final.get((seed, who))) is None else round(value, 4) for who in range(learners)]
            for seed in range(seeds[0], seeds[-1] + 1)
        ]

    def curve(self, name: str) -> Rows:
        """The mean over seeds of learners' means, and a band: the deviation over seeds, or learners of one seed."""
        by_round: dict[int, list[list[float]]] = {}
        for (round_, _), cell in sorted(self.sums.items()):
            if round_ and name in cell:
                by_round.setdefault(round_, []).append(cell[name])
        return [
            {"round": round_, name: (found := _mean_and_band(cells))[0], "low": found[1], "high": found[2]}
            for round_, cells in by_round.items()
        ]

    def cumulative_bytes(self) -> dict[int, float]:
        """Bytes of a federation until the end of each round, both ways: the mean over seeds."""
        by_round: dict[int, list[float]] = {}
        for (round_, _), cell in self.sums.items():
            moved = sum(cell[key][1] for key in ("bytes.up", "bytes.down") if key in cell)
            by_round.setdefault(round_, []).append(moved)
        rounds = sorted(by_round)
        means = (sum(by_round[round_]) / len(by_round[round_]) for round_ in rounds)
        return dict(zip(rounds, accumulate(means), strict=True))


def _mean_and_band(cells: Sequence[Sequence[float]]) -> tuple[float, float | None, float | None]:
    means = [total / count for count, total, _ in cells]
    mean = float(np.mean(means))
    count, total, squares = cells[0]
    if len(means) > 1:
        std = float(np.std(means, ddof=1))
    elif count > 1:
        std = math.sqrt(max(squares / count - (total / count) ** 2, 0.0))
    else:
        return mean, None, None
    return mean, mean - std, mean + std
