"""Sharing a fraction of the feature dimensions: the first ones of every model.

Features of a layer have no order when a model is initialized, so the first dimensions are as good as random ones, and
all learners share the same without agreeing on any.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from consilience.config.schedules import constant_number
from consilience.errors import ConfigurationError


def check_dimensions(share: float) -> None:
    """Refuse a share of the dimensions that is not above 0, or is above 1."""
    constant_number("dimensions", share)
    if not 0 < share <= 1:
        raise ConfigurationError(f"dimensions is {share}; it must be a number above 0, at most 1")


def shared_width(width: int, share: float) -> int:
    """How many dimensions are shared: at least one.

    >>> shared_width(84, 0.25), shared_width(3, 0.01)
    (21, 1)
    """
    return max(1, math.ceil(share * width - 1e-9))


def only_shared(features: Tensor, share: float) -> Tensor:
    """The dimensions of features that are shared, (rows, shared)."""
    return features if share == 1 else features[..., : shared_width(features.shape[-1], share)]


def with_zeros(entries: Tensor, width: int) -> Tensor:
    """Shared dimensions as features of the full width: 0, the middle of what a model gives, where nothing is known."""
    missing = width - entries.shape[-1]
    return F.pad(entries, (0, missing)) if missing else entries
