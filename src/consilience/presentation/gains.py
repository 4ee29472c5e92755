"""Who gains and who loses by working together: each learner against itself learning alone, with the same seed.

Both accuracies are those on data like the learner's own. A learner is helped if working together raises its accuracy by
one point of percent or more, and harmed if it lowers it by as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from consilience.presentation.paired import Difference, paired_difference

Summary = Mapping[str, Any]

ALONE = "independent"
"""The method that learns alone."""
CENTRALIZED = "centralized"
"""The method with one model on all data."""
MARGIN = 1.0
"""Points of percent from which on a difference counts as helped or harmed."""


@dataclass(frozen=True)
class Gain:
    """The gains of a run's learners over learning alone, in points of percent: by seed and learner, and in all."""

    points: Mapping[tuple[int, int], float]
    difference: Difference

    @property
    def learners(self) -> int:
        """How many learners were compared, those of every seed counted."""
        return len(self.points)

    @property
    def helped(self) -> int:
        """How many learners gained one point or more."""
        return sum(points >= MARGIN for points in self.points.values())

    @property
    def harmed(self) -> int:
        """How many learners lost one point or more."""
        return sum(points <= -MARGIN for points in self.points.values())

    def to_dict(self) -> dict[str, Any]:
        """The gain as JSON."""
        return {
            "learners": self.learners,
            "helped": self.helped,
            "harmed": self.harmed,
            "mean": self.difference.mean,
            "interval": None if self.difference.low is None else [self.difference.low, self.difference.high],
        }


def gains(summaries: Sequence[Summary]) -> list[Gain | None]:
    """The gain of each run; None for learning alone, and for runs that cannot be compared with it."""
    return [_gain(summary, summaries) for summary in summaries]


def alone_for(summary: Summary, summaries: Sequence[Summary]) -> Summary | None:
    """The run of learning alone that a run is compared with: same data, learners and rounds; None if there is none."""
    if summary["method"] in (ALONE, CENTRALIZED):
        return None
    same = [s for s in summaries if s["method"] == ALONE and all(s.get(k) == summary.get(k) for k in _SAME)]
    return min(same, key=lambda s: len(s["settings"]), default=None)  # the one with the fewest settings of its own


def by_seed(summary: Summary) -> dict[int, float]:
    """The accuracy of each seed, the mean over learners."""
    found = enumerate(summary["accuracy"].get("by_seed") or (), start=int(summary.get("seed") or 0))
    return {seed: float(mean) for seed, mean in found if mean is not None}


def own_by_seed(summary: Summary) -> dict[int, float]:
    """The own accuracy of each seed, the mean over learners."""
    found = dict(_local(summary))
    return _means(found, found)


def add_gains(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The summaries, with `gain` where it is known: how many learners are helped and harmed, and by how much."""
    return [
        {**summary, **({} if gain is None else {"gain": gain.to_dict()})}
        for summary, gain in zip(summaries, gains(summaries), strict=True)
    ]


_SAME = ("data", "learners", "rounds")


def _gain(summary: Summary, summaries: Sequence[Summary]) -> Gain | None:
    alone = alone_for(summary, summaries)
    if alone is None:
        return None
    ours, theirs = dict(_local(summary)), dict(_local(alone))
    points = {where: round(ours[where] - theirs[where], 3) for where in ours if where in theirs}
    difference = paired_difference(*(_means(values, points) for values in (ours, theirs)))
    return None if difference is None else Gain(points, difference)


def _local(summary: Summary) -> Iterator[tuple[tuple[int, int], float]]:
    """The own accuracy by seed and learner."""
    for seed, row in enumerate(summary["accuracy_own"].get("by_learner") or (), start=int(summary.get("seed") or 0)):
        yield from (((seed, learner), float(value)) for learner, value in enumerate(row) if value is not None)


def _means(values: Mapping[tuple[int, int], float], known: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """The mean of each seed, over the learners that both runs have."""
    seeds = dict.fromkeys(seed for seed, _ in known)
    return {seed: fmean(values[where] for where in known if where[0] == seed) for seed in seeds}
