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
    wherever in space the rows lie. The directions are the same for all learners: those with the same weights and
    similar samples have similar clusters.
    """
    width = rows.shape[1]
    place = torch.device("cpu") if rows.device.type == "mps" else rows.device  # which has no float64
    numbers = uniform("first clusters", torch.arange(width * clusters, device=place))
    directions = (numbers.to(rows.dtype) - 0.5).reshape(width, clusters).to(rows.device)
    along, some = rows @ directions, valid[:, None]  # (rows, clusters), (rows, 1)
    samples = valid.sum().clamp(min=1)
    along = along - (along * some).sum(0) / samples
    spread = ((along.square() * some).sum(0) / samples).sqrt()
    farthest: Tensor = (along / (spread + _TINY)).argmax(1)
    return farthest


def mean_of_views(rows: Tensor, positions: Tensor) -> Tensor:
    """Each row replaced by the mean of the rows that are views of the same sample, those with the same position."""
    same = (positions[:, None] == positions).to(rows.dtype)  # (rows, rows)
    return same @ rows / same.sum(1, keepdim=True)
