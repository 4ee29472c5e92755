"""FLESD's figure 5: the losses of local training and of distillation over many epochs (Shi et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.flesd.experiment import FEDAVG, FlesdSize, flesd_setup
from consilience.papers.flesd.figure4 import curves_figure
from consilience.papers.flesd.outcomes import flesd_cell, group_outcomes, means_by_round
from consilience.papers.sizes import Experiment

_LOSSES = {"simclr": "local training", "similarity": "distillation"}
"""The losses of the figure: the metric, and its name."""


def _cells(size: FlesdSize, scale: Scale) -> list[Cell]:
    """Many epochs, in few rounds of FLESD and in more rounds of FedAvg."""
    long = size.convergence
    return [
        flesd_cell(
            {"row": method["name"], "seed": seed},
            size.settings(scale, size.alpha, rounds, seed, **method) | {"total_epochs": long.epochs, "eval_every": 1},
        )
        for rounds, method in ((long.flesd_rounds, size.flesd()), (long.fedavg_rounds, FEDAVG))
        for seed in size.seeds_for(scale)
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Both losses and the accuracy over epochs."""
    losses, accuracies = [], []
    for (row,), found in group_outcomes(outcomes, "row").items():
        epochs = found[0].config.training.epochs
        for term, name in _LOSSES.items():
            losses += [
                {"method": f"{row}, {name}", "epochs": epochs * r, "loss": mean, "term": name}
                for r, mean in means_by_round(found, f"loss.{term}").items()
            ]
        accuracies += [
            {"method": row, "epochs": epochs * r, "accuracy": mean}
            for r, mean in means_by_round(found, "accuracy_linear").items()
        ]
    local = [row for row in losses if row["term"] == _LOSSES["simclr"]]
    distilled = [row for row in losses if row["term"] == _LOSSES["similarity"]]
    text = (
        f"{flesd_setup(outcomes[0])} The contrastive loss, the mean over learners and over a round: a point is at "
        f"the last epoch of its round. Published for CIFAR-100 at alpha 1, 2,000 epochs, 5 rounds of FLESD and 20 of "
        f"FedAvg: both losses fall alike, and FLESD's is higher after each distillation."
    )
    sections = [
        _section("Loss of local training", text, local, "loss", "local"),
        _section(
            "Loss of the distillation", "The mean over the distillation of a round.", distilled, "loss", "distilled"
        ),
        _section("Accuracy of a linear probe, %", "After the round.", accuracies, "accuracy", "accuracy"),
    ]
    return [section for section in sections if section.table]


def _section(heading: str, text: str, rows: Sequence[Mapping[str, Any]], y: str, name: str) -> ResultSection:
    digits = 1 if y == "accuracy" else 3
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        lines.setdefault(row["epochs"], {"after": f"epoch {row['epochs']}"})[row["method"]] = f"{row[y]:.{digits}f}"
    figure = curves_figure(rows, "epochs", y, "accuracy, %" if y == "accuracy" else y)
    return ResultSection(heading, text, [lines[key] for key in sorted(lines)], figure, name)


FIGURE5 = Experiment("flesd-convergence", "FLESD's figure 5: losses over many epochs", _cells, _sections)
