"""The name of the score in tables, charts and sentences: accuracy, or what stands in its place for other tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.kinds.metric import ACCURACY, METRICS, Metric

_WORSE_AND_BETTER = {"most accurate": "best", "more accurate": "better", "less accurate": "worse"}


def metric_of(summaries: Sequence[Mapping[str, Any]]) -> Metric:
    """The score of runs of one task; runs that do not say have an accuracy.

    >>> metric_of([{"metric": "r2"}]).name
    'R²'
    """
    return METRICS.get(str(summaries[0].get("metric")), ACCURACY) if summaries else ACCURACY


def in_words_of(metric: Metric, text: str) -> str:
    """A text about accuracy as one about another score.

    >>> in_words_of(METRICS["f1"], "Accuracy over rounds: the default method is the most accurate")
    'F1 over rounds: the default method is the best'
    """
    if metric == ACCURACY:
        return text
    words = {**_WORSE_AND_BETTER, "test classes": metric.groups, "accuracies": f"{metric.name} values"}
    words |= {"Accuracies": f"{metric.title} values", "accuracy": metric.name, "Accuracy": metric.title}
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def metric_headings(metric: Metric) -> dict[str, str]:
    """The headings of the two scores: of the common answer on common data, and of the own answer on own data."""
    return {"accuracy": f"{metric.name} %", "accuracy_own": f"own {metric.name} %"}


def percent_of(metric: Metric, value: float) -> str:
    """A score in a sentence: 97.4 %, or R² 45.1 %.

    >>> percent_of(METRICS["r2"], 45.12), percent_of(METRICS["accuracy"], 97.4)
    ('R² 45.1 %', '97.4 %')
    """
    return f"{value:.1f} %" if metric == ACCURACY else f"{metric.name} {value:.1f} %"
