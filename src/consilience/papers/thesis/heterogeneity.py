"""Accuracy under heterogeneous data and models: Dirichlet alpha, the nine cases of Table 2, mixed architectures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from consilience.data.heterogeneity import CASES
from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.condition_grid import METHODS, SETUP, grid_cells, grid_table
from consilience.papers.thesis.table1 import format_accuracy

_ALPHAS = (100, 10, 1, 0.3, 0.1, 0.01)
_MIXED_MODELS = {"every other an MLP": {"model": ",".join(["lenet5", "mlp"] * 5), "width": 64}}
_MODEL_AGNOSTIC = {row: METHODS[row] for row in METHODS if row not in ("fedavg", "consilience")}
"""Methods that upload no weights, which only learners with one architecture can average."""


def _cells(scale: Scale) -> list[Cell]:
    alphas = (100, 0.1) if scale.quick else _ALPHAS
    cases = dict(list(CASES.items())[3:5]) if scale.quick else CASES
    conditions: dict[str, dict[str, Any]] = {f"alpha {a:g}": {"partition": f"dirichlet({a})"} for a in alphas}
    conditions |= {f"case {figure}": {"partition": p, "shift": s} for figure, (p, s) in cases.items()}
    return grid_cells(scale, conditions, METHODS) + grid_cells(scale, _MIXED_MODELS, _MODEL_AGNOSTIC)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    text = f"{SETUP}. alpha: of the Dirichlet distribution that splits each class; case: of Table 2 of the thesis."
    same_model = [o for o in outcomes if o.labels["condition"] not in _MIXED_MODELS]
    mixed = [o for o in outcomes if o.labels["condition"] in _MIXED_MODELS]
    common, own = (grid_table(same_model, "learners' data", metric) for metric in ("accuracy", "accuracy_own"))
    sections = [
        ResultSection("Accuracy on the common test set, %", text, common, name="heterogeneity"),
        ResultSection("Own accuracy, %", "", own, name="own"),
        ResultSection(
            "Mixed architectures, accuracy in %",
            "Five learners have a LeNet5 and five an MLP, both with 64 features; weights of different architectures "
            "cannot be averaged. The data is iid.",
            [_by_model(o) for o in mixed],
            name="models",
        ),
    ]
    return [section for section in sections if section.table]


def _by_model(outcome: Outcome) -> dict[str, Any]:
    """The accuracy of the learners of each model."""
    groups = {
        name: format_accuracy(replace(outcome, summary=group)) for name, group in outcome.summary["groups"].items()
    }
    return {"method": outcome.labels["row"], **groups}


HETEROGENEITY = Reproduction(
    "thesis-heterogeneity",
    "Dirichlet alpha from 100 to 0.01, and the nine ways in which data can differ",
    _cells,
    _sections,
)
