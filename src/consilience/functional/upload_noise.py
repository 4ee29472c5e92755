"""Differential privacy of a whole upload: clip it to a norm as one vector, then add Gaussian noise to every value.

For any array of the array-API standard: learners give torch's tensors, one by one or under `vmap`, and members without
torch NumPy's arrays. Noise is passed in as standard normal numbers; nothing here branches on values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from array_api_compat import array_namespace

from consilience.kinds.one_hot import AnyArray

_ROUNDED_DOWN = 1 - 1e-6  # so that rounding makes no clipped vector longer than the clip


def clip_factor(norm: AnyArray, clip: float) -> AnyArray:
    """What vectors of these norms are multiplied by, so that none is longer than `clip`; 0 where a norm is NaN."""
    xp = array_namespace(norm)
    longest = xp.maximum(norm, xp.full_like(norm, xp.finfo(norm.dtype).tiny))
    factor = xp.minimum(clip * _ROUNDED_DOWN / longest, xp.ones_like(norm))
    finite: AnyArray = xp.where(xp.isfinite(norm), factor, xp.zeros_like(factor))
    return finite


def clip_together(tensors: Mapping[str, AnyArray], clip: float) -> dict[str, AnyArray]:
    """Tensors shortened by one factor, so that all of them together, as one vector, are no longer than `clip`."""
    xp = array_namespace(*tensors.values())
    squares = [xp.sum(xp.square(xp.astype(tensor, xp.float64))) for tensor in tensors.values()]
    factor = clip_factor(xp.sqrt(xp.sum(xp.stack(squares))), clip)
    return {
        name: xp.where(factor > 0, tensor, xp.zeros_like(tensor)) * xp.astype(factor, tensor.dtype)
        for name, tensor in tensors.items()
    }


def private_upload(
    tensors: Mapping[str, AnyArray], clip: float, noise_multiplier: float, normal: AnyArray
) -> dict[str, AnyArray]:
    """A whole upload, clipped to the norm `clip` as one vector, with Gaussian noise added to every value.

    Two uploads of norm `clip` differ by at most 2 x clip, whatever data they come from: that is the sensitivity when a
    learner's whole data set is replaced by any other. The standard deviation of the noise is noise_multiplier x 2 x
    clip. normal: standard normal numbers, one for each value of all tensors, in their order.
    """
    xp = array_namespace(normal)
    clipped, deviation, start = clip_together(tensors, clip), 2 * clip * noise_multiplier, 0
    found = {}
    for name, tensor in clipped.items():
        size = math.prod(tensor.shape)
        part = xp.astype(normal[start : start + size].reshape(tensor.shape), tensor.dtype)
        found[name], start = tensor + deviation * part, start + size
    return found
