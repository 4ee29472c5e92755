"""Mechanisms of differential privacy for single samples: clip each to a norm, then add Gaussian noise to their sum.

Noise is passed in as standard normal numbers, so that whoever calls decides where it comes from. Nothing here branches
on values, and everything works under `vmap`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from consilience.functional.upload_noise import clip_factor

COUNT_SCALE = 0.5
"""A sample's count of 1 enters a release as this times the clip, beside its values: more of it would spend more of the
budget on counts, and less would make them noisier."""
_DEVIATIONS = 3.0  # of the noise of a count: a class whose noised count is below is not shared


def clip_rows(rows: Tensor, clip: float) -> Tensor:
    """Rows (..., width) shortened to the norm `clip`, each by itself; a row with a NaN or infinite value becomes 0."""
    factor: Tensor = clip_factor(torch.linalg.vector_norm(rows, dim=-1), clip)
    return torch.where(factor[..., None] > 0, rows, torch.zeros_like(rows)) * factor[..., None]


def class_sums_sensitivity(clip: float, entries: int, replaced: float) -> float:
    """By how much class sums and scaled counts change, in the l2 norm, when one sample contributes nothing instead.

    entries: how many sums a sample may enter. replaced: how many rows of the norm `clip` the values of one sum may
    change by: 1, or 2 where another sample takes the place of one that is missing.
    """
    return clip * math.sqrt(entries * (replaced**2 + COUNT_SCALE**2))


def private_class_means(
    values: Tensor, member: Tensor, clip: float, deviation: float, normal: Tensor, min_count: int
) -> tuple[Tensor, Tensor]:
    """Means (entries, classes, width) and counts (entries, classes) of noised sums and noised counts.

    values: (rows, width), each clipped to the norm `clip` first. member: (entries, rows, classes), 1 where a row enters
    a class of an entry. deviation: of the noise of every value of the sums; counts are released as COUNT_SCALE x clip
    x count, so that the deviation of theirs is deviation / (COUNT_SCALE x clip). normal: standard normal numbers, one
    for each value of the sums and then one for each count. A class whose noised count is below `min_count`, or below
    three deviations of its noise, is not shared: zeros with count 0. No other value of the data is looked at.
    """
    entries, _, classes = member.shape
    width = values.shape[-1]
    noise = normal.to(values.dtype) * deviation
    sums = torch.einsum("erc,rw->ecw", member, clip_rows(values, clip))
    sums = sums + noise[: entries * classes * width].reshape(entries, classes, width)
    scale = COUNT_SCALE * clip
    counts = member.sum(1) + noise[entries * classes * width :].reshape(entries, classes) / scale
    enough = counts >= max(float(min_count), _DEVIATIONS * deviation / scale)
    means = clip_rows(sums / counts.clamp(min=1.0)[..., None], clip)  # no mean of clipped rows is longer
    return torch.where(enough[..., None], means, torch.zeros_like(means)), torch.where(
        enough, counts.round(), torch.zeros_like(counts)
    )


def private_gradient(
    gradients: Tensor, drawn: Tensor, clip: float, noise_multiplier: Tensor, normal: Tensor, expected: Tensor
) -> Tensor:
    """The gradient of a step of DP-SGD (Abadi et al. 2016), (parameters,).

    gradients: (rows, parameters), each sample's own, clipped to the norm `clip` first. drawn: (rows,) 1 where a row is
    a sample of this batch. The noise of every value has the deviation noise_multiplier x clip: a sample that
    contributes nothing instead changes the sum by at most `clip`. expected: the expected size of a batch, which is
    known; the size of this one is not.
    """
    clipped = clip_rows(gradients, clip)
    summed = torch.einsum("r,rp->p", drawn.to(clipped.dtype), clipped)
    return (summed + noise_multiplier.to(clipped.dtype) * clip * normal.to(clipped.dtype)) / expected.to(clipped.dtype)
