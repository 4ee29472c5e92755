"""Mechanisms of differential privacy as pure functions: clip to a norm, then add Gaussian noise.

Noise is passed in as standard normal numbers, so that whoever calls decides where it comes from. Nothing here branches
on values, and everything works under `vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

COUNT_SCALE = 0.5
"""A sample's count of 1 enters a release as this times the clip, beside its values: more of it would spend more of the
budget on counts, and less would make them noisier."""
_ROUNDED_DOWN = 1 - 1e-6  # so that rounding makes no clipped vector longer than the clip
_DEVIATIONS = 3.0  # of the noise of a count: a class whose noised count is below is not shared


def clip_factor(norm: Tensor, clip: float) -> Tensor:
    """What vectors of these norms are multiplied by, so that none is longer than `clip`; 0 where a norm is NaN."""
    factor = (clip * _ROUNDED_DOWN / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
    return torch.where(norm.isfinite(), factor, torch.zeros_like(factor))


def clip_rows(rows: Tensor, clip: float) -> Tensor:
    """Rows (..., width) shortened to the norm `clip`, each by itself; a row with a NaN or infinite value becomes 0."""
    factor = clip_factor(torch.linalg.vector_norm(rows, dim=-1), clip)
    return torch.where(factor[..., None] > 0, rows, torch.zeros_like(rows)) * factor[..., None]


def clip_together(tensors: Mapping[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Tensors shortened by one factor, so that all of them together, as one vector, are no longer than `clip`."""
    squares = [tensor.double().square().sum() for tensor in tensors.values()]
    factor = clip_factor(torch.stack(squares).sum().sqrt(), clip)
    return {
        name: torch.where(factor > 0, tensor, torch.zeros_like(tensor)) * factor.to(tensor.dtype)
        for name, tensor in tensors.items()
    }


def private_upload(
    tensors: Mapping[str, Tensor], clip: float, noise_multiplier: float, normal: Tensor
) -> dict[str, Tensor]:
    """A whole upload, clipped to the norm `clip` as one vector, with Gaussian noise added to every value.

    Two uploads of norm `clip` differ by at most 2 x clip, whatever data they come from: that is the sensitivity when a
    learner's whole data set is replaced by any other. The standard deviation of the noise is noise_multiplier x 2 x
    clip. normal: standard normal numbers, one for each value of all tensors, in their order.
    """
    clipped, deviation, start = clip_together(tensors, clip), 2 * clip * noise_multiplier, 0
    found = {}
    for name, tensor in clipped.items():
        part = normal[start : start + tensor.numel()].reshape(tensor.shape).to(tensor.dtype)
        found[name], start = tensor + deviation * part, start + tensor.numel()
    return found


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
