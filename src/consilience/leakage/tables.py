"""What was found of runs as rows of tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.leakage.findings import Leakage, OfLearners

Found = Mapping[str, Leakage]
"""Of each run by its label."""
Rows = list[dict[str, Any]]

_LAYERS = (
    "dcor: distance correlation of inputs and a layer's output, on test samples and on a learner's own; 1 where the "
    "output is the input up to rotation and scale. Few samples make it too large; the corrected one, a square, is 0 "
    "for what is independent."
)
_REBUILT = (
    "SSIM and PSNR: how like a learner's own images are those that a decoder rebuilds from the layer's output; guess: "
    "how like the mean image is."
)
MEANS = (
    "Images rebuilt from the mean feature of some samples of a class, as observations are shared, or of all, as "
    "prototypes are: how like the nearest of those samples, and their mean image; guess: how like the nearest is "
    "the mean image that an attacker has of the class."
)
MEMBERS = (
    "Samples in a mean told from test samples of the class, by how near their features are to it. AUC: 0.5 if not at "
    "all, 1 if always; advantage: true less false positives at the best threshold, beside what chance alone seems to "
    "give."
)


def layers_text(found: Found) -> str:
    """What the numbers of layers mean."""
    seen = list(found.values())
    rebuilt = any(layer.rebuilt is not None for each in seen for layer in each.layers)
    spread = any(len(each.learners) > 1 for each in seen)
    said = (_LAYERS, _REBUILT if rebuilt else "", "± standard deviation over learners." if spread else "")
    return " ".join(filter(None, said))


def layers_rows(found: Found) -> Rows:
    """A row for each run and layer."""
    return [
        {
            **_named(label, found),
            "layer": layer.name,
            "dcor": said(layer.tests.plain),
            "corrected": said(layer.tests.corrected),
            "dcor own": said(layer.own.plain),
            "corrected own": said(layer.own.corrected),
            **_rebuilt(layer.rebuilt),
        }
        for label, leakage in found.items()
        for layer in leakage.layers
    ]


def _rebuilt(rebuilt: Any) -> dict[str, str]:
    if rebuilt is None:
        return {}
    return {
        "SSIM": said(rebuilt.ssim),
        "SSIM of guess": said(rebuilt.guess_ssim, spread=False),
        "PSNR dB": said(rebuilt.psnr, 1),
        "PSNR of guess": said(rebuilt.guess_psnr, 1, spread=False),
    }


def means_rows(found: Found) -> Rows:
    """A row for each run and number of samples in a mean, where anything was rebuilt."""
    return [
        {
            **_named(label, found),
            "samples in a mean": number(shared.n_avg),
            "SSIM nearest": said(shared.rebuilt.ssim_nearest),
            "SSIM of guess": said(shared.rebuilt.guess_ssim, spread=False),
            "SSIM mean image": said(shared.rebuilt.ssim_mean),
            "PSNR nearest": said(shared.rebuilt.psnr_nearest, 1),
            "PSNR of guess": said(shared.rebuilt.guess_psnr, 1, spread=False),
            "PSNR mean image": said(shared.rebuilt.psnr_mean, 1),
        }
        for label, leakage in found.items()
        for shared in leakage.shared
        if shared.rebuilt is not None
    ]


def members_rows(found: Found) -> Rows:
    """A row for each run and number of samples in a mean."""
    return [
        {
            **_named(label, found),
            "samples in a mean": number(shared.n_avg),
            "means": shared.means,
            "AUC": said(shared.members.auc),
            "advantage": said(shared.members.advantage),
            "by chance": said(shared.members.by_chance),
        }
        for label, leakage in found.items()
        for shared in leakage.shared
        if shared.members is not None
    ]


def _named(label: str, found: Found) -> dict[str, str]:
    """Which run it is, where there are several."""
    return {"run": label} if len(found) > 1 else {}


def number(n_avg: int | None) -> str:
    """How many samples a mean is of."""
    return "all" if n_avg is None else str(n_avg)


def said(value: OfLearners, digits: int = 2, spread: bool = True) -> str:
    """A mean over learners, and how far they are apart."""
    if value.mean is None:
        return "–"
    apart = f" ± {value.std_learners:.{digits}f}" if spread and value.std_learners is not None else ""
    return f"{value.mean:.{digits}f}{apart}"
