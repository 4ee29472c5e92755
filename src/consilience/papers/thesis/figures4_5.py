"""Figures 4 and 5 of the thesis: accuracy over rounds, and where two learners' features lie as they learn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.papers.cells import Cell, Outcome, Reproduction, Scale, Shown
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS
from consilience.report.feature_map import feature_map
from consilience.simulation.records.run_folder import RunFolder

_DRAWN = tuple(row for row in ROWS if row not in ("centralized", "self-distillation", "fedavg-1bit"))
_MAPPED = ("independent", "fedavg", "representation-sharing")
_ROUNDS = (1, 10, 25, 50, 75, 100)


def cells(scale: Scale) -> list[Cell]:
    """Five learners on MNIST, tested after every round."""
    settings = {**TASKS["MNIST"], **scale.settings(5), "learners": 5}
    settings |= {"rounds": 15, "test": 1000} if scale.quick else {}
    return [Cell({"row": row}, settings | {"method": ROWS[row]}) for row in _DRAWN]


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """Test and training accuracy, each with the spread over learners and seeds."""
    shown = []
    for key, heading in (("accuracy", "Test accuracy over rounds, %"), ("accuracy_train", "Training accuracy, %")):
        rows = [row for outcome in outcomes for row in _curve(outcome, key)]
        shown.append(Shown(heading, "", _ends(rows), _drawn(rows), key))
    return shown


def _curve(outcome: Outcome, key: str) -> list[dict[str, Any]]:
    """Mean and standard deviation over learners and seeds, one row a round."""
    by_round: dict[int, list[float]] = {}
    for text in RunFolder(outcome.folder).lines():
        line = json.loads(text)
        if line["round"] and line[key] is not None:
            by_round.setdefault(line["round"], []).append(line[key])
    return [
        {"method": outcome.labels["row"], "round": r, "mean": float(np.mean(v)), "std": float(np.std(v))}
        for r, v in sorted(by_round.items())
    ]


def _ends(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few rounds of every curve, as a table."""
    last = max(row["round"] for row in rows)
    some = sorted({1, *(round(last * share) for share in (0.1, 0.25, 0.5, 0.75, 1)), last} - {0})
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["round"] in some:
            line = lines.setdefault(row["method"], {"method": row["method"]})
            line[f"round {row['round']}"] = f"{row['mean']:.1f} ± {row['std']:.1f}"
    return list(lines.values())


def _drawn(rows: list[dict[str, Any]]) -> Any:
    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(
            [
                {**row, "accuracy": row["mean"], "low": row["mean"] - row["std"], "high": row["mean"] + row["std"]}
                for row in rows
            ]
        )

    return figure


# --- feature maps


def map_cells(scale: Scale) -> list[Cell]:
    """Two learners on MNIST, stopped after so many rounds: the same seed gives the same course each time."""
    rounds = (1, 5, 10) if scale.quick else _ROUNDS
    settings = {**TASKS["MNIST"], **scale.settings(1), "learners": 2, "seeds": 1, "test": 500}
    return [
        Cell({"row": row, "round": r}, settings | {"method": ROWS[row], "rounds": r, "eval_every": r}, keep_models=True)
        for row in _MAPPED
        for r in rounds
    ]


def maps_told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """The features of some test images at both learners, laid out in the plane together."""
    shown = []
    for outcome in outcomes:
        rows = feature_map(outcome.folder).rows
        name = f"{outcome.labels['row']}, round {outcome.labels['round']}"
        table = [{"round": outcome.labels["round"], "accuracy": round(outcome.summary["accuracy"]["mean"], 1)}]
        shown.append(Shown(name, "", table, _mapped(rows), name.replace(", ", "-").replace(" ", "-")))
    return shown


def _mapped(rows: list[dict[str, Any]]) -> Any:
    def figure() -> Any:
        from consilience.presentation.scatter_charts import scatter

        return scatter(rows)

    return figure


CURVES = Reproduction("thesis-curves", "Figure 4: training and test accuracy over rounds", cells, told)
MAPS = Reproduction("thesis-tsne", "Figure 5: the features of two learners as they learn", map_cells, maps_told)
