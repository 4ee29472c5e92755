"""Accuracy by the number of classes: the first 2, 5 and 10 of MNIST."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.condition_grid import METHODS, SETUP, grid_cells, grid_table
from consilience.papers.thesis.formats import both_ways

_CLASSES = (2, 5, 10)
_ROWS = ("independent", "representation-sharing", "fedavg", "consilience")


def _cells(scale: Scale) -> list[Cell]:
    conditions = {f"{count} classes": {"classes": count} for count in _CLASSES}
    return grid_cells(scale, conditions, {row: METHODS[row] for row in _ROWS})


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Accuracy, and the bytes of each method: one line per number of classes."""
    rounds = outcomes[0].summary["rounds"]
    text = (
        f"{SETUP}, {rounds} rounds; 1,200 images of the first 2, 5 or 10 digits, and the test images of these. With "
        f"fewer classes there are more images of each, and guessing is right more often: 50, 20 and 10 %."
    )
    sent: dict[str, dict[str, str | float]] = {}
    for outcome in outcomes:
        line = sent.setdefault(outcome.labels["condition"], {"classes": outcome.labels["condition"]})
        line[outcome.labels["row"]] = both_ways(outcome.summary["message_bytes"])
    about = "Upload and download of a learner in a round. Representations grow with the number of classes."
    return [
        ResultSection("Accuracy by the number of classes, %", text, grid_table(outcomes, "classes"), name="classes"),
        ResultSection("Bytes by the number of classes", about, list(sent.values()), name="classes-bytes"),
    ]


CLASSES = Reproduction("thesis-classes", "Accuracy with 2, 5 and 10 classes", _cells, _sections)
