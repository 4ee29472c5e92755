"""Who gains and who loses by working together: each learner against itself learning alone, with the same seed.

Both are own accuracies: of the own answer, on data like the learner's own. A learner is helped if working together
raises it by more than one point of percent, and harmed if it lowers it by more than that. Some learners differ as much
by chance; the control shows how many: the same learners alone, with the same data and first weights and other batches.
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
"""Points of percent; a larger difference counts as helped or harmed."""
BATCH_ORDER = "batch_order"
"""The setting in which the control differs from learning alone."""


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
        """How many learners gained more than one point."""
        return sum(points > MARGIN for points in self.points.values())

    @property
    def harmed(self) -> int:
        """How many learners lost more than one point."""
        return sum(points < -MARGIN for points in self.points.values())

    def to_dict(self) -> dict[str, Any]:
        """The gain as JSON: how many learners are helped and harmed, and the mean gain with its interval."""
        return {"helped": self.helped, "harmed": self.harmed, "gain_own": {**self.difference.to_dict(), **self._size()}}

    def counts(self) -> dict[str, int]:
        """How many learners are helped and harmed, of how many."""
        return {"helped": self.helped, "harmed": self.harmed, **self._size()}

    def _size(self) -> dict[str, int]:
        return {"learners": self.learners}


def gains(summaries: Sequence[Summary]) -> list[Gain | None]:
    """The gain of each run; None for learning alone, and for runs that cannot be compared with it."""
    return [_gain(summary, summaries) for summary in summaries]


def is_control(summary: Summary) -> bool:
    """Whether a run is the control: learning alone with another batch order."""
    return summary["method"] == ALONE and bool(summary["settings"].get(BATCH_ORDER))


def alone_for(summary: Summary, summaries: Sequence[Summary]) -> Summary | None:
    """The run of learning alone that a run is compared with: same data, learners and rounds; None if there is none."""
    if summary["method"] in (ALONE, CENTRALIZED) and not is_control(summary):
        return None
    same = [s for s in _same_task(summary, summaries) if s["method"] == ALONE and not is_control(s)]
    if is_control(summary):
        same = [s for s in same if s["settings"] == _without_order(summary)]
    return min(same, key=lambda s: len(s["settings"]), default=None)  # the one with the fewest settings of its own


def control_of(summary: Summary, summaries: Sequence[Summary]) -> Gain | None:
    """The gain of the control over the run of learning alone that a run is compared with; None if there is none."""
    alone = None if is_control(summary) else alone_for(summary, summaries)
    controls = [s for s in _same_task(summary, summaries) if is_control(s)]
    found = [s for s in controls if alone is not None and _without_order(s) == alone["settings"]]
    return _gain(found[0], summaries) if found else None


def by_seed(summary: Summary, metric: str = "accuracy") -> dict[int, float]:
    """A metric of each seed, the mean over learners; empty where it is not known."""
    found = enumerate((summary.get(metric) or {}).get("by_seed") or (), start=int(summary.get("seed") or 0))
    return {seed: float(mean) for seed, mean in found if mean is not None}


def own_by_seed(summary: Summary) -> dict[int, float]:
    """The own accuracy of each seed, the mean over learners."""
    found = dict(_local(summary))
    return _means(found, found)


def add_gains(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The summaries, where it is known with `helped`, `harmed` and `gain_own`, and `control`, the control's counts."""
    controls = [control_of(summary, summaries) for summary in summaries]
    return [
        {
            **summary,
            **({} if gain is None else gain.to_dict()),
            **({} if control is None else {"control": control.counts()}),
        }
        for summary, gain, control in zip(summaries, gains(summaries), controls, strict=True)
    ]


_SAME = ("data", "learners", "rounds")


def _same_task(summary: Summary, summaries: Sequence[Summary]) -> list[Summary]:
    return [s for s in summaries if all(s.get(key) == summary.get(key) for key in _SAME)]


def _without_order(summary: Summary) -> dict[str, Any]:
    return {key: value for key, value in summary["settings"].items() if key != BATCH_ORDER}


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
