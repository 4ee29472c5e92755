"""Differences between runs with the same seeds, and their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

# The 97.5 % quantile of Student's t by degrees of freedom.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 1.959964


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds, in points of percent, and its 95 % interval; one seed has none."""

    by_seed: tuple[float, ...]
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.by_seed)

    @property
    def seeds(self) -> int:
        """How many seeds both runs have."""
        return len(self.by_seed)

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0; two seeds are never enough: equal differences of both may be chance."""
        return self.low is not None and self.high is not None and self.seeds > 2 and (self.low > 0 or self.high < 0)

    def interval(self) -> str:
        """The interval in words. One seed has none; that of two is far wider than their values, which are named."""
        if self.low is None or self.high is None:
            return "one seed"
        if self.seeds == 2:
            first, second = self.by_seed
            return f"{first:+.1f} and {second:+.1f} in two seeds"
        return f"95 % interval {self.low:+.1f} to {self.high:+.1f}, {self.seeds} seeds"

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON: its mean, its 95 % interval, which one seed does not have, and how many seeds."""
        interval = None if self.low is None or self.high is None else [self.low, self.high]
        return {"mean": self.mean, "interval": interval, "seeds": self.seeds}


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """The difference of two values by seed, over the seeds that both have; None if there is no such seed."""
    differences = tuple(value - theirs[seed] for seed, value in ours.items() if seed in theirs)
    if not differences:
        return None
    mean, count = fmean(differences), len(differences)
    if count == 1:
        return Difference(differences)
    half = t_quantile(count - 1) * stdev(differences) / math.sqrt(count)
    return Difference(differences, mean - half, mean + half)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with so many degrees of freedom, to three digits."""
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
