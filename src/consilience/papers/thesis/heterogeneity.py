"""Accuracy under heterogeneous data and models: Dirichlet alpha, the nine cases of Table 2, mixed architectures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from consilience.data.heterogeneity import CASES
from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.best_methods import MARK_TEXT
from consilience.papers.thesis.condition_grid import METHODS, SETUP, count_best, gains_table, grid_cells, grid_table
from consilience.papers.thesis.formats import format_accuracy

VALIDATION = 0.2
"""The share of its samples that every learner holds out for validation, with every method alike."""
CONTROL = "independent:batch_order=1"
_SEEDS = 10
_ROWS = {**METHODS, CONTROL: {"name": "independent", "batch_order": 1}}
_ALPHAS = (100, 10, 1, 0.3, 0.1, 0.01)
_MIXED_MODELS = {
    "every other an MLP": {"model": ",".join(["lenet5", "mlp"] * 5), "width": 64, "validation": VALIDATION}
}
_MODEL_AGNOSTIC = {row: METHODS[row] for row in METHODS if row not in ("fedavg", "consilience")}
"""Methods that upload no weights, which only learners with one architecture can average."""
_DATA = "learners' data"
_HELD_OUT = f"With every method, each learner holds out the same {100 * VALIDATION:.0f} % of its images for validation."
_COMMON = (
    f"{SETUP}. {_HELD_OUT} alpha: of the Dirichlet distribution that splits each class; case: of Table 2 of the "
    f"thesis. {MARK_TEXT}"
)
_OWN = "A learner's own answer on data like its own; marks are as above."
_HELPED = (
    "helped / harmed: the learners of all seeds, in %, whose own accuracy is more than one point higher or lower than "
    f"that of the same learner alone with the same seed. {CONTROL} is the control: the same learners alone with "
    "another order of batches; as many are helped and harmed by chance."
)


def _conditions(quick: bool) -> dict[str, dict[str, Any]]:
    """The settings of each condition; a case that is one of the alphas is named with it, and not listed again."""
    alphas, figures = ((100, 0.3, 0.1), ("7d", "7e")) if quick else (_ALPHAS, tuple(CASES))
    names = {(f"dirichlet({alpha:g})", "none"): f"alpha {alpha:g}" for alpha in alphas}
    for figure in figures:
        case = CASES[figure]
        names[case] = f"{names[case]} (case {figure})" if case in names else f"case {figure}"
    return {
        name: {"partition": partition, "shift": shift, "validation": VALIDATION}
        for (partition, shift), name in names.items()
    }


def _cells(scale: Scale) -> list[Cell]:
    return grid_cells(scale, _conditions(scale.quick), _ROWS, _SEEDS) + grid_cells(
        scale, _MIXED_MODELS, _MODEL_AGNOSTIC, _SEEDS
    )


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    same_model = [o for o in outcomes if o.labels["condition"] not in _MIXED_MODELS]
    mixed = [o for o in outcomes if o.labels["condition"] in _MIXED_MODELS]
    sections = [
        _accuracy_section("Accuracy on the common test set, %", _COMMON, same_model, "accuracy", "heterogeneity"),
        _accuracy_section("Own accuracy, %", _OWN, same_model, "accuracy_own", "own"),
        ResultSection("Learners helped and harmed, %", _HELPED, gains_table(same_model, _DATA), name="helped"),
        ResultSection(
            "Mixed architectures, accuracy in %",
            "Five learners have a LeNet5 and five an MLP, both with 64 features; weights of different architectures "
            f"cannot be averaged. The data is iid. {_HELD_OUT}",
            [_by_model(o) for o in mixed],
            name="models",
        ),
    ]
    return [section for section in sections if section.table]


def _accuracy_section(heading: str, text: str, outcomes: Sequence[Outcome], metric: str, name: str) -> ResultSection:
    table = grid_table(outcomes, _DATA, metric, mark_best=True)
    return ResultSection(heading, f"{text} {count_best(outcomes, metric)}".rstrip(), table, name=name)


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
