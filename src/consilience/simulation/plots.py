"""Curves of runs as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from consilience.kinds.metric import ACCURACY, Metric
from consilience.presentation.chart import Chart
from consilience.presentation.charts import curves
from consilience.presentation.method_looks import look_order
from consilience.presentation.score_words import in_words_of
from consilience.simulation.records.history import History

FINISHED_BEFORE = "every run was finished before, so none has curves here; write_report draws them"
"""The error of a comparison or a sweep whose runs were read from its folder."""


def plot_runs(runs: Mapping[str, History], metric: str, score: Metric = ACCURACY) -> Chart:
    """A metric over rounds, one line for each run; the band is the deviation over seeds, or of one seed's learners.

    score: what the runs' accuracy is.
    """
    rows = [row for name, history in runs.items() for row in _curve(name, history, metric)]
    column = _column(metric)
    title = in_words_of(score, f"{column}, %") if metric.startswith("accuracy") else column
    return curves(rows, y=column, title=title, names=look_order(list(runs)))


def _column(metric: str) -> str:
    """The metric's name without dots, which a chart would read as a path."""
    return metric.replace(".", " ")


def _curve(name: str, history: History, metric: str) -> Iterator[dict[str, Any]]:
    for round_, values in enumerate(history[metric], start=1):  # (seeds, learners)
        if np.isnan(values).all():
            continue
        by_seed = np.nanmean(values, axis=1)
        mean, row = float(np.nanmean(by_seed)), {"method": name, "round": round_}
        deviation = np.nanstd(by_seed, ddof=1) if len(by_seed) > 1 else np.nanstd(values)
        single = values.size == 1
        band = (None, None) if single else (mean - float(deviation), mean + float(deviation))
        yield row | {_column(metric): mean, "low": band[0], "high": band[1]}
