"""Sharing a fraction of the feature dimensions: always the first ones, or other ones in every round.

Features of a layer have no order when a model is initialized, so the first dimensions are as good as random ones, and
all learners share the same without agreeing on any. Where they change with the rounds, learners contribute all
dimensions, of which only those of the round travel (`consilience.simulation.round.subspaces`).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from consilience.config.schedules import constant_number
from consilience.errors import ConfigurationError
from consilience.validation import check_choice
from consilience.wire.encodings import Encoding

Subspace = Literal["first", "random", "top-variance"]
"""Which dimensions are shared."""
SHARED = "shared"
"""The tensor of an answer that tells which dimensions it has, (width,), 1 or 0; where they change with the rounds."""


def check_dimensions(share: float, subspace: Subspace, encoding: Encoding) -> None:
    """Refuse a share of the dimensions that is not above 0, or is above 1, and a subspace that does not fit."""
    constant_number("dimensions", share)
    if not 0 < share <= 1:
        raise ConfigurationError(f"dimensions is {share}; it must be a number above 0, at most 1")
    check_choice("subspace", subspace, get_args(Subspace))
    if subspace == "first":
        return
    if share == 1:
        raise ConfigurationError(
            f"subspace is {subspace!r}, and dimensions is 1: all dimensions are shared; set dimensions, such as 0.25, "
            f"or leave subspace out"
        )
    if encoding.bits < 16:
        raise ConfigurationError(
            f"subspace is {subspace!r}, and encoding is {encoding.name!r}, whose scale is of all dimensions together; "
            f"use float32 or float16, or subspace='first'"
        )


def shared_width(width: int, share: float, subspace: Subspace = "first") -> int:
    """How wide uploads are: at least one dimension; all where only those of the round travel of them.

    >>> shared_width(84, 0.25), shared_width(3, 0.01), shared_width(84, 0.25, "random")
    (21, 1, 84)
    """
    return max(1, math.ceil(share * width - 1e-9)) if subspace == "first" else width


def only_shared(features: Tensor, share: float, subspace: Subspace = "first") -> Tensor:
    """The dimensions of features that are uploaded, (rows, uploaded)."""
    return features if share == 1 else features[..., : shared_width(features.shape[-1], share, subspace)]


def with_zeros(entries: Tensor, width: int) -> Tensor:
    """Shared dimensions as features of the full width: 0, the middle of what a model gives, where nothing is known."""
    missing = width - entries.shape[-1]
    return F.pad(entries, (0, missing)) if missing else entries


def mean_over_shared(shared: Tensor) -> Tensor:
    """Factors of dimensions, (width,), with which a mean of squares over all is one over those that are shared.

    >>> mean_over_shared(Tensor([1, 0, 0, 0]))
    tensor([2., 0., 0., 0.])
    """
    return shared * (shared.shape[-1] / shared.sum().clamp(min=1)).sqrt()
