"""Figure 4 of the thesis: test and training accuracy over rounds (Berdoz 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.metrics_by_round import values_by_round
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS

_ROWS = tuple(row for row in ROWS if row not in ("centralized", "self-distillation", "fedavg-1bit"))


def _cells(scale: Scale) -> list[Cell]:
    """Five learners on MNIST, tested after every round."""
    settings = {**TASKS["MNIST"], **scale.settings(5), "learners": 5}
    settings |= {"rounds": 15, "test": 1000} if scale.quick else {}
    return [Cell({"row": row}, settings | {"method": ROWS[row]}, reads_folder=True) for row in _ROWS]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Test and training accuracy, each with the standard deviation over learners and seeds."""
    sections = []
    for metric, heading in (("accuracy", "Test accuracy over rounds, %"), ("accuracy_train", "Training accuracy, %")):
        rows = [row for outcome in outcomes for row in _curve(outcome, metric)]
        sections.append(ResultSection(heading, "", _table(rows), _figure(rows), metric))
    return sections


def _curve(outcome: Outcome, metric: str) -> list[dict[str, Any]]:
    """Mean and standard deviation over learners and seeds, one row per round."""
    return [
        {"method": outcome.labels["row"], "round": r, "mean": float(np.mean(v)), "std": float(np.std(v))}
        for r, v in values_by_round(outcome, metric).items()
    ]


def _table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few rounds of every curve."""
    last = max(row["round"] for row in rows)
    rounds = {1, *(round(last * share) for share in (0.1, 0.25, 0.5, 0.75, 1)), last} - {0}
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["round"] in rounds:
            line = lines.setdefault(row["method"], {"method": row["method"]})
            line[f"round {row['round']}"] = f"{row['mean']:.1f} ± {row['std']:.1f}"
    return list(lines.values())


def _figure(rows: list[dict[str, Any]]) -> Callable[[], Any]:
    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(
            [
                {**row, "accuracy": row["mean"], "low": row["mean"] - row["std"], "high": row["mean"] + row["std"]}
                for row in rows
            ]
        )

    return figure


FIGURE4 = Reproduction("thesis-curves", "Figure 4: training and test accuracy over rounds", _cells, _sections)
