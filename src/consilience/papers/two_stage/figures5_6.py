"""Two-stage learning's figures 5 and 6: what the cut layer tells of the inputs, by how much alpha_1 counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch

from consilience.leakage.image_grids import grid
from consilience.leakage.reconstruction import VICTIMS
from consilience.leakage.tables import said
from consilience.papers.cells import Cell, Outcome, Scale, Shown
from consilience.papers.two_stage.experiment import FEDAVG, FEDPROX, SIZES, TWO_STAGE, Size, circumstances
from consilience.papers.two_stage.progress import course_of, percent, some_of
from consilience.papers.two_stage.reconstruction import Rebuilt, rebuilt_of
from consilience.report.section import Picture
from consilience.simulation.records.run_folder import RunFolder

_TOLD = (1, 2, 5, 10, 20, 50)  # rounds that the table has, or the next tested; and the last
_COLUMNS = {
    "distance correlation": "correlation",
    "corrected": "corrected",
    "SSIM": "ssim",
    "PSNR, dB": "psnr",
}
_GUESS = {"SSIM": "guess_ssim", "PSNR, dB": "guess_psnr"}
_CONTROL = f"{TWO_STAGE}, alpha_1 = 0"
Row = dict[str, Any]


def cells(size: Size, scale: Scale) -> list[Cell]:
    """Two-stage by alpha_1, and the two it is compared with; all models are kept."""
    leaking, kept = size.leaking, {"seeds": 1}  # models of one seed are looked at
    found = [
        Cell(
            {"row": TWO_STAGE, "alpha_1": f"{alpha:g}"},
            leaking.task.settings(scale, TWO_STAGE, alpha_1=alpha) | kept | {"watch": "cut"},
            keep_models=True,
        )
        for alpha in leaking.alphas
    ]
    return found + [
        Cell({"row": row}, leaking.task.settings(scale, row) | kept | {"watch": leaking.watched}, keep_models=True)
        for row in (FEDAVG, FEDPROX)
    ]


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """What is told of the inputs by round; what a decoder makes of it in the end; and the pictures."""
    leaks = {_called(outcome): dependence_of(outcome) for outcome in outcomes}
    text = (
        f"Distance correlation of test images and what a layer makes of them, the mean over devices: the cut layer of "
        f"two-stage, the first convolution of fedavg and fedprox. What the layer gives leaves a device in none of "
        f"them. 1 is the image itself; few samples make it too large. Published: below 0.55 from the first rounds on, "
        f"and below fedavg and fedprox throughout.\n\n{circumstances(outcomes)} Not as published: fewer devices, for "
        f"the models of a hundred with what Adam remembers would be 2.3 GB a cell."
    )
    found = {_called(outcome): rebuilt_of(outcome) for outcome in outcomes}
    rebuilt = (
        f"From what the layer gives, after the last round. {_examined(found)} SSIM and PSNR: how like those images "
        f"are what the decoder rebuilds; last, the attacker's mean image in its place. An attack that fails proves "
        f"nothing: another may succeed. Corrected: the square of the correlation without its bias, 0 for what is "
        f"independent. Accuracy: of the mean of all devices' logits, or of the newest common model; own classes: of "
        f"each device on those it has. ± standard deviation over devices. SSIM lost: by how much it is lower than the "
        f"same device's with alpha_1 = 0, ± standard error of the mean."
    )
    return [
        Shown("Distance correlation by round", text, _falling(leaks), _fell(leaks), "dependence"),
        Shown("What can be rebuilt", rebuilt, _table(outcomes, found), name="rebuilt", pictures=_pictures(found)),
    ]


def dependence_of(outcome: Outcome) -> dict[int, float]:
    """The distance correlation after every round tested, the mean over devices and seeds."""
    values: dict[int, list[float]] = {}
    for text in RunFolder(outcome.folder).lines():
        line = json.loads(text)
        if line["dependence"] is not None:
            values.setdefault(line["round"], []).append(line["dependence"])
    return {round_: fmean(each) for round_, each in sorted(values.items())}


def _falling(leaks: Mapping[str, Mapping[int, float]]) -> list[Row]:
    return [
        {"method": row, **{f"round {r}": f"{leak[r]:.3f}" for r in some_of(leak, _TOLD)}} for row, leak in leaks.items()
    ]


def _fell(leaks: Mapping[str, Mapping[int, float]]) -> Callable[[], Any]:
    rows = [
        {"method": row, "round": round_, "dependence": value}
        for row, leak in leaks.items()
        for round_, value in leak.items()
    ]

    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, y="dependence", title="distance correlation")

    return figure


def _examined(found: Mapping[str, Rebuilt]) -> str:
    """How it was looked for, in a sentence."""
    some = next(iter(found.values()))
    return (
        f"The attacker has a device's model and {int(some.auxiliary):,} test images, and trains a decoder of its own "
        f"for {int(some.epochs)} epochs; {len(some.devices)} devices, of each up to {VICTIMS} of the images it "
        f"trained on."
    )


def _table(outcomes: Sequence[Outcome], found: Mapping[str, Rebuilt]) -> list[Row]:
    lines = []
    for outcome in outcomes:
        row, course = _called(outcome), course_of(outcome)
        good = {"accuracy": percent(course.final), "own classes": percent(course.own)}
        fall = _fall(found.get(_CONTROL), found[row]) if row != _CONTROL else None
        lines.append({"method": row, **good, **_told(found[row], _COLUMNS), "SSIM lost": fall})
    return [*lines, {"method": "the mean image"} | _told(next(iter(found.values())), _GUESS)]


def _told(found: Rebuilt, columns: Mapping[str, str]) -> Row:
    return {name: said(found.over_devices(what), 1 if "psnr" in what else 3) for name, what in columns.items()}


def _fall(control: Rebuilt | None, other: Rebuilt) -> str | None:
    """How much lower a device's SSIM is than the same device's in the control, with the standard error of that mean."""
    if control is None or not np.array_equal(control.devices, other.devices) or len(other.devices) < 2:
        return None
    falls = control.ssim - other.ssim
    return f"{falls.mean():.3f} ± {falls.std(ddof=1) / len(falls) ** 0.5:.3f}"


def _pictures(found: Mapping[str, Rebuilt]) -> list[Picture]:
    """One grid: images as they are, and below what was rebuilt of them, a line for each method."""
    truth = next(iter(found.values())).truth
    alike = {row: each for row, each in found.items() if np.array_equal(each.truth, truth)}
    lines = {row.rpartition(", ")[2]: torch.from_numpy(each.images) for row, each in alike.items()}
    words = f"Images that devices trained on, and below what a decoder rebuilt of them: {', '.join(alike)}"
    return [Picture(grid({"original": torch.from_numpy(truth), **lines}), words)]


def _called(outcome: Outcome) -> str:
    alpha = outcome.labels.get("alpha_1")
    return outcome.labels["row"] if alpha is None else f"{outcome.labels['row']}, alpha_1 = {alpha}"


LEAKAGE = SIZES.both(
    "two-stage-leakage", "Two-stage learning's figures 5 and 6: what the cut layer tells of the inputs", cells, told
)
