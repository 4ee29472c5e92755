"""Similarities of samples in feature space, and their distillation from many teachers to a student (FLESD, 4.3).

Similarities are products of unit rows. Sharpened ones are exp((similarity - 1) / temperature): equation 5 less a row's
maximum, which is 1 at the sample itself. Equation 8 divides the factor out again, and nothing overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TOLERANCE = 1e-5  # closer similarities count as equal: rounding differs between a block and the whole matrix
_NO_FLOOR = -2.0  # below every similarity


def unit_rows(features: Tensor) -> Tensor:
    """Scale rows to length 1, (..., width). A row of zeros stays zero, with the gradient of a row of length 1."""
    squared = features.square().sum(-1, keepdim=True)
    long_enough = squared > torch.finfo(squared.dtype).tiny
    return features / torch.where(long_enough, squared, torch.ones_like(squared)).sqrt()


def similarity_thresholds(rows: Tensor, keep: float, block: int = 1024) -> Tensor:
    """The similarity that each row's nearest `keep` share of all rows reaches, itself among them, (samples,).

    rows: (samples, width), of length 1. Never more than (block, samples) similarities are held at once.
    """
    samples = len(rows)
    if keep >= 1:
        return rows.new_full((samples,), _NO_FLOOR)
    kept = max(1, math.ceil(keep * samples - 1e-6))  # 0.1 x 30 is a little more than 3 in floats
    reach = min(kept, samples - kept + 1)  # counted from the nearer end
    nearest = reach == kept
    parts = [rows[start : start + block] for start in range(0, samples, block)]
    return torch.cat([(part @ rows.T).topk(reach, largest=nearest).values[:, -1] for part in parts])


def ensemble_similarities(
    entries: Tensor,
    present: Tensor,
    queries: Tensor,
    anchors: Tensor,
    temperature: float | Tensor,
    floors: Tensor | None = None,
) -> Tensor:
    """Equations 4 to 6 for a block (queries, anchors): the mean of the present teachers' sharpened similarities.

    entries: (teachers, samples, width), of length 1. present: (teachers,), 1 where there is an entry and 0 where not.
    queries, anchors: positions among the samples. floors: (teachers, samples), as `similarity_thresholds` gives them.
    Without a teacher everything is 0.
    """
    similar = entries[:, queries] @ entries[:, anchors].transpose(1, 2)  # (teachers, queries, anchors)
    least = None if floors is None else _either(floors[:, queries], floors[:, anchors])
    here = present.to(similar.dtype)
    share = here / here.sum().clamp(min=1)  # (teachers,)
    return (share[:, None, None] * _sharp(similar, temperature, least)).sum(0)


def sharpened_similarities(rows: Tensor, temperature: float | Tensor, floors: Tensor | None = None) -> Tensor:
    """One teacher's sharpened similarities of all samples, as a triangle. floors: (samples,)."""
    least = None if floors is None else _either(floors, floors)
    return upper_triangle(_sharp(rows @ rows.T, temperature, least))


def _either(first: Tensor, second: Tensor) -> Tensor:
    """The least similarity of a pair that is among the nearest of either sample, (..., first, second)."""
    return torch.minimum(first[..., :, None], second[..., None, :])


def _sharp(similar: Tensor, temperature: float | Tensor, least: Tensor | None) -> Tensor:
    sharp = ((similar - 1) / temperature).exp()
    return sharp if least is None else torch.where(similar < least - _TOLERANCE, torch.zeros_like(sharp), sharp)


def upper_triangle(matrix: Tensor) -> Tensor:
    """The values above the diagonal of a (samples, samples) matrix, row by row: samples x (samples - 1) / 2."""
    row, column = torch.triu_indices(len(matrix), len(matrix), 1, device=matrix.device)
    return matrix[row, column]


def symmetric_matrix(values: Tensor, size: int, diagonal: float = 1.0) -> Tensor:
    """The symmetric matrix (size, size) with these values above its diagonal: the inverse of `upper_triangle`."""
    place = torch.arange(size, device=values.device)
    return matrix_block(values, size, place, place, diagonal)


def matrix_block(values: Tensor, size: int, queries: Tensor, anchors: Tensor, diagonal: float = 1.0) -> Tensor:
    """Some rows and columns of `symmetric_matrix`, (queries, anchors), without computing all of it."""
    low, high = torch.minimum(queries[:, None], anchors), torch.maximum(queries[:, None], anchors)
    above = low * (2 * size - low - 1) // 2 + high - low - 1  # positions of the pairs in the triangle
    found = values[above.clamp(0, len(values) - 1)] if size > 1 else values.new_empty(low.shape)
    return found.masked_fill(low == high, diagonal)


def target_distributions(similar: Tensor) -> Tensor:
    """Equation 8: the rows of a block (queries, anchors) as distributions. A row of zeros stays zero."""
    total = similar.sum(-1, keepdim=True)
    return similar / torch.where(total > 0, total, torch.ones_like(total))


def kl_divergence(target: Tensor, features: Tensor, anchors: Tensor, temperature: float | Tensor) -> Tensor:
    """Equations 7 and 9 for a mini-batch: KL(p || q) of the target's and the student's distributions.

    target: (rows, anchors). features: (rows, width) and anchors: (anchors, width), of length 1. The mean over the rows;
    one whose target is all zeros counts as 0. No gradient goes to the target.
    """
    wanted = target.detach()
    student = (features @ anchors.T / temperature).log_softmax(-1)  # (rows, anchors)
    return (torch.xlogy(wanted, wanted) - wanted * student).sum(-1).mean()
