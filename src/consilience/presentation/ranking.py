"""Which metric ranks the settings of a sweep, and their ranks.

Validation samples come first: a setting that was chosen by test samples has an accuracy on them that is too good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Summary = Mapping[str, Any]
Metric = Literal["accuracy_validation", "ensemble", "accuracy"]

RANKINGS: dict[Metric, str] = {
    "accuracy_validation": "validation accuracy",
    "ensemble": "ensemble accuracy on the test set",
    "accuracy": "accuracy on the test set",
}
"""The metrics that rank settings, the first that all of them have, and what they are."""
TEST_CHOSE = (
    "settings are ranked by {metric}: the test set chose the best one, so its accuracy is too good; hold out samples "
    "to choose by with --validation 0.2"
)


def ranked_by(summaries: Sequence[Summary]) -> Metric:
    """The validation accuracy if all runs that did not diverge have it; else the ensemble's; else the accuracy."""
    converged = [s for s in summaries if not s.get("diverged") and s["accuracy"]["mean"] is not None]
    for metric in RANKINGS:
        if converged and all((s.get(metric) or {}).get("mean") is not None for s in converged):
            return metric
    return "accuracy"


def rank(summaries: Sequence[Summary]) -> list[Summary]:
    """The summaries, the best first; those that diverged last."""
    metric = ranked_by(summaries)
    return sorted(summaries, key=lambda s: (bool(s.get("diverged")), -_mean(s, metric)))


def _mean(summary: Summary, metric: Metric) -> float:
    """A metric's mean; one that is not known is below all others, as scores such as R² may be below 0."""
    mean = (summary.get(metric) or {}).get("mean")
    return -math.inf if mean is None else float(mean)


def add_ranks(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The summaries of settings with `rank`, from 1, and `ranked_by`, the metric."""
    metric, order = ranked_by(summaries), [id(s) for s in rank(summaries)]
    return [{**s, "ranked_by": metric, "rank": 1 + order.index(id(s))} for s in summaries]
