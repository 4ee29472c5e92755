"""Figure 5 of the thesis: t-SNE maps of two learners' features during training (Berdoz 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS
from consilience.report.feature_map import feature_map

_ROWS = ("independent", "fedavg", "representation-sharing")
_ROUNDS = (1, 10, 25, 50, 75, 100)


def _cells(scale: Scale) -> list[Cell]:
    """Two learners on MNIST, one cell for each number of rounds: the same seed gives the same training each time."""
    rounds = (1, 5, 10) if scale.quick else _ROUNDS
    settings = {**TASKS["MNIST"], **scale.settings(1), "learners": 2, "seeds": 1, "test": 500}
    return [
        Cell({"row": row, "round": r}, settings | {"method": ROWS[row], "rounds": r, "eval_every": r}, keep_models=True)
        for row in _ROWS
        for r in rounds
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One map per cell: the features of the same test images at both learners, embedded together."""
    sections = []
    for outcome in outcomes:
        rows = feature_map(outcome.folder).rows
        heading = f"{outcome.labels['row']}, round {outcome.labels['round']}"
        table = [{"round": outcome.labels["round"], "accuracy": round(outcome.summary["accuracy"]["mean"], 1)}]
        name = heading.replace(", ", "-").replace(" ", "-")
        sections.append(ResultSection(heading, "", table, _figure(rows), name))
    return sections


def _figure(rows: list[dict[str, Any]]) -> Callable[[], Any]:
    def figure() -> Any:
        from consilience.presentation.scatter_charts import scatter

        return scatter(rows)

    return figure


FIGURE5 = Reproduction("thesis-tsne", "Figure 5: the features of two learners during training", _cells, _sections)
