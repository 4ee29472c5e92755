"""Accuracy if learners are offline in some rounds, only a few take part in each, or all but two are out of reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.condition_grid import METHODS, SETUP, grid_cells, grid_table

_OFFLINE = (0, 0.3, 0.5, 0.7, 0.9)
SAME_TWO = "all but the same two offline"
_REACHED = "reached"
_TWO: dict[str, dict[str, Any]] = {
    "two of ten present": {"participation": 0.2},
    SAME_TWO: {"reachable": "fixed(2)", "groups": {_REACHED: {"learners": "0-1"}}},
    "all but two in turn offline": {"reachable": "turns(2)"},
}


def _cells(scale: Scale) -> list[Cell]:
    probabilities = (0, 0.9) if scale.quick else _OFFLINE
    conditions: dict[str, dict[str, Any]] = {f"offline {p:g}": {"offline": p} for p in probabilities}
    return grid_cells(scale, conditions | _TWO, METHODS)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    text = (
        f"{SETUP}. Offline: the probability that a learner cannot reach the relay in a round; it trains with its last "
        f"download. Two present: two of ten learners take part in a round, drawn anew for each round; the others do "
        f"not train. All but two offline: two can reach the relay, always the same or two in turn; the others train "
        f"with their last download."
    )
    table = grid_table(outcomes, "presence")
    heading = "Accuracy with learners that are offline in some rounds, %"
    sections = [ResultSection(heading, text, table, name="asynchrony")]
    same = [o for o in outcomes if o.labels["condition"] == SAME_TWO]
    return sections + ([_same_two(same)] if same else [])


def _same_two(outcomes: Sequence[Outcome]) -> ResultSection:
    """The two that are always reached, and the eight that never are."""
    lines: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        for name, group in outcome.summary["groups"].items():
            who = "the two that are reached" if name == _REACHED else "the eight that are not"
            line = lines.setdefault(who, {"learners": who})
            line[outcome.labels["row"]] = f"{group['accuracy']['mean']:.1f}"
    text = "Mean accuracy of both kinds of learners, in %. Before the first round all are reached once."
    return ResultSection("All but the same two offline", text, list(lines.values()), name="same-two")


ASYNCHRONY = Reproduction(
    "thesis-asynchrony", "Learners that are offline in some rounds, down to two present", _cells, _sections
)
