"""Accuracy if learners are offline in some rounds, or only a few take part in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.condition_grid import METHODS, SETUP, grid_cells, grid_table

_OFFLINE = (0, 0.3, 0.5, 0.7, 0.9)


def _cells(scale: Scale) -> list[Cell]:
    probabilities = (0, 0.9) if scale.quick else _OFFLINE
    conditions: dict[str, dict[str, Any]] = {f"offline {p:g}": {"offline": p} for p in probabilities}
    conditions |= {"two of ten present": {"participation": 0.2}}
    return grid_cells(scale, conditions, METHODS)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    text = (
        f"{SETUP}. Offline: the probability that a learner cannot reach the relay in a round; it trains with its last "
        f"download. Two present: two of ten learners take part in a round, drawn anew for each round."
    )
    table = grid_table(outcomes, "presence")
    return [ResultSection("Accuracy with learners that are offline in some rounds, %", text, table, name="asynchrony")]


ASYNCHRONY = Reproduction(
    "thesis-asynchrony", "Learners that are offline in some rounds, down to two present", _cells, _sections
)
