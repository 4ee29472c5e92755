"""Which methods are best under a condition, or so close to the best that seeds do not tell them apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from consilience.papers.cells import Outcome
from consilience.presentation.gains import CENTRALIZED, by_seed, is_control
from consilience.presentation.paired import paired_difference

MARK_TEXT = (
    "In each line * marks the best method and those within one standard error of it: the mean of the differences to "
    "the best with the same seed is at most their standard deviation / sqrt(seeds). The control "
    "independent:batch_order=1 is never marked."
)


def best_methods(outcomes: Sequence[Outcome], metric: str = "accuracy") -> frozenset[str]:
    """The rows of one condition that are best or within one standard error of the best; none of fewer than two.

    The control, and one model on all data, are not compared.
    """
    reached = {o.labels["row"]: found for o in outcomes if _is_compared(o) and (found := by_seed(o.summary, metric))}
    if len(reached) < 2:
        return frozenset()
    best = max(reached, key=lambda row: fmean(reached[row].values()))
    return frozenset(row for row in reached if row == best or _is_close(reached[best], reached[row]))


def _is_compared(outcome: Outcome) -> bool:
    return outcome.summary["method"] != CENTRALIZED and not is_control(outcome.summary)


def _is_close(best: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether the mean difference is at most its standard error; that of one seed is 0."""
    difference = paired_difference(best, other)
    if difference is None:
        return False
    spread = stdev(difference.by_seed) if difference.seeds > 1 else 0.0
    return difference.mean <= spread / math.sqrt(difference.seeds)
