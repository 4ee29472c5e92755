"""Accuracy against bytes for compositions of exchanges and encodings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.condition_grid import SETUP, grid_cells
from consilience.papers.thesis.table1 import format_accuracy

_COMPOSITIONS: Mapping[str, dict[str, Any]] = {
    "nothing": {"name": "independent"},
    "prototypes": {"name": "fedproto"},
    "prototypes, 16 bits": {"name": "fedproto", "encoding": "float16"},
    "logits": {"name": "federated-distillation"},
    "representations": {"name": "representation-sharing"},
    "representations, 16 bits": {"name": "representation-sharing", "encoding": "float16"},
    "representations, 8 bits": {"name": "representation-sharing", "encoding": "int8"},
    **{f"1-bit weights every {k}": {"name": "fedavg-1bit", "every": k} for k in (1, 2, 4, 8)},
    **{f"representations + 1-bit weights every {k}": {"name": "consilience", "every": k} for k in (1, 2, 4, 8)},
    "8-bit weights": {"name": "fedavg", "up": "int8", "down": "int8"},
    "16-bit weights": {"name": "fedavg", "up": "float16", "down": "float16"},
    "weights": {"name": "fedavg"},
}
_BYTES, _UPLOAD = "bytes uploaded per round", "what is uploaded"


def _cells(scale: Scale) -> list[Cell]:
    return grid_cells(scale, {"MNIST, ten learners": {}}, _COMPOSITIONS)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    rows = [
        {
            _UPLOAD: outcome.labels["row"],
            _BYTES: round(outcome.summary["bytes"]["up"]),
            "accuracy": round(outcome.summary["accuracy"]["mean"], 2),
            "with spread": format_accuracy(outcome),
        }
        for outcome in outcomes
    ]
    text = f"{SETUP}: the bytes that a learner uploads in a round, and the accuracy after the last round."
    ranked = sorted(rows, key=lambda row: row[_BYTES])

    def figure() -> Any:
        from consilience.presentation.scatter_charts import frontier

        return frontier(ranked, _BYTES, "accuracy", _UPLOAD)

    return [ResultSection("Accuracy against upload", text, ranked, figure, "frontier")]


FRONTIER = Reproduction("frontier", "Accuracy against bytes for compositions of exchanges", _cells, _sections)
