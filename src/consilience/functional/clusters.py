"""Clusters of unit vectors, without branches: a cluster without samples is a row of zeros with count 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from consilience.randomness import uniform

_TINY = 1e-12


def nearest_center(rows: Tensor, centers: Tensor, count: Tensor) -> Tensor:
    """The center that is nearest to each row, (rows,); one with count 0 is never it, unless all are."""
    distance = centers.square().sum(1) - 2 * rows @ centers.T  # (rows, clusters), without what is the same in a row
    return torch.where(count > 0, distance, math.inf).argmin(1)


def first_clusters(rows: Tensor, valid: Tensor, clusters: int) -> Tensor:
    """Clusters before there are centers, (rows,): of some random directions, the one along which a row lies farthest.

    How far is measured from the mean and in standard deviations of the valid rows, so that clusters have samples
    wherever in space the rows lie. Learners with the same weights and similar samples have similar clusters: the
    directions are the same for all.
    """
    width = rows.shape[1]
    numbers = uniform("first clusters", torch.arange(width * clusters, device=rows.device))
    directions = (numbers.to(rows.dtype) - 0.5).reshape(width, clusters)
    along, some = rows @ directions, valid[:, None]  # (rows, clusters), (rows, 1)
    samples = valid.sum().clamp(min=1)
    along = along - (along * some).sum(0) / samples
    spread = ((along.square() * some).sum(0) / samples).sqrt()
    return (along / (spread + _TINY)).argmax(1)


def center_contrast(rows: Tensor, own: Tensor, centers: Tensor, count: Tensor, temperature: float | Tensor) -> Tensor:
    """Cross-entropy of each unit row's own center among all, by their cosines, without centers of count 0, (rows,)."""
    lengths = centers.norm(dim=1).clamp(min=_TINY)
    cosines = rows @ (centers / lengths[:, None]).T / temperature  # (rows, clusters)
    # A finite number, since with no center at all the softmax of minus infinity would be NaN.
    chance = torch.where(count > 0, cosines, -1e4).log_softmax(1)
    return -chance.gather(1, own[:, None])[:, 0]
