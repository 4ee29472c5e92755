"""Two-stage learning's figures 5 and 6: leakage of the cut layer by alpha_1 (Ma et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch

from consilience.leakage.attacker import MAX_RECONSTRUCTED
from consilience.leakage.image_grids import image_grid
from consilience.leakage.tables import format_statistics
from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.metrics_by_round import select_rounds, values_by_round
from consilience.papers.sizes import Experiment
from consilience.papers.two_stage.device_attacks import DeviceAttacks, record_attacks, recorded_attacks
from consilience.papers.two_stage.experiment import FEDAVG, FEDPROX, RECORDS, TWO_STAGE, TwoStageSize, two_stage_setup
from consilience.papers.two_stage.progress import format_percent, progress_of
from consilience.report.section import Picture

_TABLE_ROUNDS = (1, 2, 5, 10, 20, 50)  # or the next tested round; and the last
_COLUMNS = {
    "distance correlation": "correlation",
    "corrected": "corrected",
    "SSIM": "ssim",
    "PSNR, dB": "psnr",
}
_BASELINE = {"SSIM": "baseline_ssim", "PSNR, dB": "baseline_psnr"}
_CONTROL = f"{TWO_STAGE}, alpha_1 = 0"
Row = dict[str, Any]


def _cells(size: TwoStageSize, scale: Scale) -> list[Cell]:
    """Two-stage by alpha_1, and the two methods it is compared with; all checkpoints are kept."""
    leakage, one_seed = size.leakage, {"seeds": 1}  # the models of one seed are attacked
    records = {**RECORDS, "attacks": record_attacks, "dependence": record_dependence}
    found = [
        Cell(
            {"row": TWO_STAGE, "alpha_1": f"{alpha:g}"},
            leakage.task.settings(scale, TWO_STAGE, alpha_1=alpha) | one_seed | {"watch": "cut"},
            keep_models=True,
            records=records,
        )
        for alpha in leakage.alphas
    ]
    return found + [
        Cell(
            {"row": row},
            leakage.task.settings(scale, row) | one_seed | {"watch": leakage.watched},
            keep_models=True,
            records=records,
        )
        for row in (FEDAVG, FEDPROX)
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Distance correlation by round; the images that a decoder reconstructs after the last round."""
    leaks = {_row_name(outcome): dependence_of(outcome) for outcome in outcomes}
    text = (
        f"Distance correlation of test images and the output of a layer, the mean over devices: the cut layer of "
        f"two-stage, the first convolution of fedavg and fedprox. The output of the layer leaves a device in none of "
        f"the methods. 1 is the image itself; with few samples the estimate is too large. Published: below 0.55 from "
        f"the first rounds on, and always below fedavg and fedprox.\n\n{two_stage_setup(outcomes)} Fewer devices than "
        f"published: the models of a hundred devices with Adam's state would take 2.3 GB per cell."
    )
    attacks = {_row_name(outcome): recorded_attacks(outcome) for outcome in outcomes}
    batch = outcomes[0].config.training.batch_size
    reconstructed = (
        f"Batches of {batch} images: large enough for alpha_1 to act, while the distance correlation of a batch of "
        f"ten is near 1 whatever is in it. Images are reconstructed from the output of the layer after the last "
        f"round. {_describe_attack(attacks)} SSIM and PSNR: similarity of the reconstructed to the true images; the "
        f"last line has the attacker's mean image instead. An attack that fails proves nothing: another may succeed. "
        f"Corrected: the square of the correlation without its bias, 0 if independent. Accuracy: of the mean of all "
        f"devices' logits, or of the newest common model; own classes: of each device on its own classes. ± standard "
        f"deviation over devices. SSIM lost: the difference to the same device with alpha_1 = 0, ± standard error of "
        f"the mean."
    )
    return [
        ResultSection(
            "Distance correlation over rounds", text, _dependence_table(leaks), _dependence_figure(leaks), "dependence"
        ),
        ResultSection(
            "Accuracy and leakage of the same runs",
            reconstructed,
            _table(outcomes, attacks),
            name="reconstructed",
            pictures=_pictures(attacks),
        ),
    ]


def dependence_of(outcome: Outcome) -> dict[int, float]:
    """The distance correlation after every tested round, the mean over devices and seeds."""
    return {int(round_): value for round_, value in outcome.records["dependence"]}


def record_dependence(outcome: Outcome) -> list[tuple[int, float]]:
    """A record of the distance correlation."""
    found = values_by_round(outcome, "dependence", first=0)
    return [(round_, round(fmean(values), 6)) for round_, values in found.items()]


def _dependence_table(leaks: Mapping[str, Mapping[int, float]]) -> list[Row]:
    return [
        {"method": row, **{f"round {r}": f"{leak[r]:.3f}" for r in select_rounds(leak, _TABLE_ROUNDS)}}
        for row, leak in leaks.items()
    ]


def _dependence_figure(leaks: Mapping[str, Mapping[int, float]]) -> Callable[[], Any]:
    rows = [
        {"method": row, "round": round_, "dependence": value}
        for row, leak in leaks.items()
        for round_, value in leak.items()
    ]

    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, y="dependence", title="distance correlation")

    return figure


def _describe_attack(attacks: Mapping[str, DeviceAttacks]) -> str:
    """The attacker's knowledge and training in a sentence."""
    some = next(iter(attacks.values()))
    return (
        f"The attacker has a device's model and {int(some.auxiliary):,} test images, and trains a decoder of its own "
        f"for {int(some.epochs)} epochs; {len(some.devices)} devices, of each up to {MAX_RECONSTRUCTED} of its "
        f"training images."
    )


def _table(outcomes: Sequence[Outcome], attacks: Mapping[str, DeviceAttacks]) -> list[Row]:
    lines = []
    for outcome in outcomes:
        row, progress = _row_name(outcome), progress_of(outcome)
        accuracy = {"accuracy": format_percent(progress.final), "own classes": format_percent(progress.own)}
        lost = _ssim_lost(attacks.get(_CONTROL), attacks[row]) if row != _CONTROL else None
        lines.append({"method": row, **accuracy, **_numbers(attacks[row], _COLUMNS), "SSIM lost": lost})
    return [*lines, {"method": "the mean image"} | _numbers(next(iter(attacks.values())), _BASELINE)]


def _numbers(found: DeviceAttacks, columns: Mapping[str, str]) -> Row:
    return {
        name: format_statistics(found.over_devices(what), 1 if "psnr" in what else 3) for name, what in columns.items()
    }


def _ssim_lost(control: DeviceAttacks | None, other: DeviceAttacks) -> str | None:
    """The mean difference of the SSIM of each device to the control, with its standard error."""
    if control is None or not np.array_equal(control.devices, other.devices) or len(other.devices) < 2:
        return None
    differences = control.ssim - other.ssim
    return f"{differences.mean():.3f} ± {differences.std(ddof=1) / len(differences) ** 0.5:.3f}"


def _pictures(attacks: Mapping[str, DeviceAttacks]) -> list[Picture]:
    """One grid: the true images, and below them the reconstructed images of each method."""
    truth = next(iter(attacks.values())).truth
    comparable = {row: each for row, each in attacks.items() if np.array_equal(each.truth, truth)}
    lines = {row.rpartition(", ")[2]: torch.from_numpy(each.images) for row, each in comparable.items()}
    caption = (
        f"Training images of devices, and below them the images that a decoder reconstructed: {', '.join(comparable)}"
    )
    return [Picture(image_grid({"original": torch.from_numpy(truth), **lines}), caption)]


def _row_name(outcome: Outcome) -> str:
    alpha = outcome.labels.get("alpha_1")
    return outcome.labels["row"] if alpha is None else f"{outcome.labels['row']}, alpha_1 = {alpha}"


FIGURES5_6 = Experiment(
    "two-stage-leakage", "Two-stage learning's figures 5 and 6: leakage of the cut layer", _cells, _sections
)
