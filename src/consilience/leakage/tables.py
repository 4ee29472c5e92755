"""The leakage of runs as rows of tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.leakage.results import LayerReconstruction, LeakageResult, LearnerStatistics

LeakageByRun = Mapping[str, LeakageResult]
"""The results by the label of the run."""
Rows = list[dict[str, Any]]

_LAYERS = (
    "dcor: distance correlation of inputs and a layer's outputs, on test samples and on a learner's own; 1 if the "
    "output is the input up to rotation and scale. With few samples it is too large; the corrected one, a square, is 0 "
    "for independent outputs."
)
_RECONSTRUCTION = (
    "SSIM and PSNR: similarity of a learner's own images to those that a decoder reconstructs from the outputs; "
    "baseline: the mean image instead."
)
MEANS = (
    "Images reconstructed from the mean feature of some samples of a class (observations), or of all (prototypes): "
    "similarity to the nearest of these samples, and to their mean image; baseline: the attacker's mean image of the "
    "class, compared with the nearest sample."
)
MEMBERSHIP = (
    "Samples in a mean are distinguished from test samples of the class by the distance of their features to the mean. "
    "AUC: 0.5 is chance, 1 is always correct; advantage: true minus false positive rate at the best threshold, and the "
    "same for shuffled memberships (chance)."
)


def layers_text(found: LeakageByRun) -> str:
    """The meaning of the columns of layers."""
    results = list(found.values())
    sentences = [_LAYERS]
    if any(layer.reconstruction is not None for each in results for layer in each.layers):
        sentences.append(_RECONSTRUCTION)
    if any(len(each.learners) > 1 for each in results):
        sentences.append("± standard deviation over learners.")
    return " ".join(sentences)


def layers_rows(found: LeakageByRun) -> Rows:
    """One row per run and layer."""
    return [
        {
            **_run_column(label, found),
            "layer": layer.name,
            "dcor": format_statistics(layer.test_samples.correlation),
            "corrected": format_statistics(layer.test_samples.corrected),
            "dcor own": format_statistics(layer.own_samples.correlation),
            "corrected own": format_statistics(layer.own_samples.corrected),
            **_reconstruction_columns(layer.reconstruction),
        }
        for label, leakage in found.items()
        for layer in leakage.layers
    ]


def _reconstruction_columns(found: LayerReconstruction | None) -> dict[str, str]:
    if found is None:
        return {}
    return {
        "SSIM": format_statistics(found.ssim),
        "baseline SSIM": format_statistics(found.baseline_ssim, spread=False),
        "PSNR dB": format_statistics(found.psnr, 1),
        "baseline PSNR": format_statistics(found.baseline_psnr, 1, spread=False),
    }


def means_rows(found: LeakageByRun) -> Rows:
    """One row per run and number of samples in a mean, if images were reconstructed."""
    return [
        {
            **_run_column(label, found),
            "samples per mean": format_group_size(means.samples_per_mean),
            "SSIM nearest": format_statistics(means.reconstruction.ssim_nearest),
            "baseline SSIM": format_statistics(means.reconstruction.baseline_ssim, spread=False),
            "SSIM mean image": format_statistics(means.reconstruction.ssim_mean),
            "PSNR nearest": format_statistics(means.reconstruction.psnr_nearest, 1),
            "baseline PSNR": format_statistics(means.reconstruction.baseline_psnr, 1, spread=False),
            "PSNR mean image": format_statistics(means.reconstruction.psnr_mean, 1),
        }
        for label, leakage in found.items()
        for means in leakage.class_means
        if means.reconstruction is not None
    ]


def membership_rows(found: LeakageByRun) -> Rows:
    """One row per run and number of samples in a mean."""
    return [
        {
            **_run_column(label, found),
            "samples per mean": format_group_size(means.samples_per_mean),
            "means": means.means,
            "AUC": format_statistics(means.membership.auc),
            "advantage": format_statistics(means.membership.advantage),
            "chance": format_statistics(means.membership.chance_advantage),
        }
        for label, leakage in found.items()
        for means in leakage.class_means
        if means.membership is not None
    ]


def _run_column(label: str, found: LeakageByRun) -> dict[str, str]:
    """The label of the run, if there are several."""
    return {"run": label} if len(found) > 1 else {}


def format_group_size(samples: int | None) -> str:
    """The number of samples in a mean as text."""
    return "all" if samples is None else str(samples)


def format_statistics(value: LearnerStatistics, digits: int = 2, spread: bool = True) -> str:
    """A mean over learners and their standard deviation."""
    if value.mean is None:
        return "–"
    std = f" ± {value.std_learners:.{digits}f}" if spread and value.std_learners is not None else ""
    return f"{value.mean:.{digits}f}{std}"
