"""A chart of accuracy against the number of learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consilience.papers.cells import Outcome


def accuracy_by_learners(outcomes: Sequence[Outcome]) -> Callable[[], Any]:
    """Accuracy against the number of learners, with the standard deviation over seeds."""
    rows = [
        {
            "method": outcome.labels["row"],
            "learners": outcome.labels["learners"],
            "accuracy": outcome.summary["accuracy"]["mean"],
            "spread": outcome.summary["accuracy"]["std_seeds"] or 0.0,
        }
        for outcome in outcomes
    ]

    def figure() -> Any:
        from consilience.presentation.scatter_charts import by_size

        return by_size(rows, "learners")

    return figure
