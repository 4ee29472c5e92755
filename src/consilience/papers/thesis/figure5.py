"""Figure 5 of the thesis: t-SNE maps of two learners' features during training (Berdoz 2022)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS
from consilience.report.feature_map import feature_map

_ROWS = ("independent", "fedavg", "representation-sharing")
_ROUNDS = (1, 10, 25, 50, 75, 100)
_SIDE_BY_SIDE = (1, 25, 100)
Rows = list[dict[str, Any]]
Map = tuple[Rows, float]
"""The points of a map, and the accuracy of the models."""


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
    """For each method the first, a middle and the last map side by side, and then one map per cell.

    A map has the features of the same test images at both learners, embedded together; every map by itself, so that
    places on two maps cannot be compared.
    """
    maps: dict[str, dict[int, Map]] = {}
    sections = []
    for outcome in outcomes:
        row, round_ = outcome.labels["row"], outcome.labels["round"]
        accuracy = round(outcome.summary["accuracy"]["mean"], 1)
        found = maps.setdefault(row, {})[round_] = feature_map(outcome.folder).rows, accuracy
        heading, table = f"{row}, round {round_}", [{"round": round_, "accuracy": accuracy}]
        sections.append(ResultSection(heading, "", table, _figure(found[0]), f"{row}-round-{round_}"))
    return [_side_by_side(row, by_round) for row, by_round in maps.items() if len(by_round) > 1] + sections


def _side_by_side(row: str, maps: Mapping[int, Map]) -> ResultSection:
    rounds = sorted(maps)
    some = {rounds[0], rounds[len(rounds) // 2], rounds[-1]}
    shown = _SIDE_BY_SIDE if maps.keys() >= set(_SIDE_BY_SIDE) else sorted(some)
    panels = [(f"round {r}", maps[r][0]) for r in shown]

    def figure() -> Any:
        from consilience.presentation.scatter_charts import scatters

        return scatters(panels)

    text = "Each map is embedded by itself: places on one map say nothing of places on another."
    table = [{"round": r, "accuracy": maps[r][1]} for r in shown]
    return ResultSection(f"{row}, rounds {', '.join(map(str, shown))}", text, table, figure, f"{row}-rounds")


def _figure(rows: Rows) -> Callable[[], Any]:
    def figure() -> Any:
        from consilience.presentation.scatter_charts import scatter

        return scatter(rows)

    return figure


FIGURE5 = Reproduction("thesis-tsne", "Figure 5: the features of two learners during training", _cells, _sections)
