"""The channels of means by group, and what they may be of: the same for members with torch and without it."""

from __future__ import annotations

from typing import Literal

from consilience.errors import ConfigurationError
from consilience.functional.group_means import Weighting
from consilience.wire import schema
from consilience.wire.encodings import Encoding
from consilience.wire.robustness import PLAIN, Robustness

LARGEST_LOGIT = 1e4
"""The bound of logits of any model: larger than any plausible one, and small enough for exact sums in float64."""
_ONE_EACH = Robustness(weight_cap=1)  # a learner that claims more counts as one


def means_channel(
    name: str,
    shape: tuple[int, int],
    bound: float,
    encoding: Encoding,
    weighting: Weighting,
    scope: Literal["everybody", "oneself"] = "everybody",
) -> schema.Mean:
    """A standing mean of (groups, width), weighted by group counts, or with equal weights of at most 1."""
    robustness = PLAIN if weighting == "samples" else _ONE_EACH
    return schema.Mean(name, mean_tensor(shape, bound, encoding), shape[:1], scope, robustness=robustness)


def mean_tensor(shape: tuple[int, int], bound: float, encoding: Encoding) -> dict[str, schema.Tensor]:
    """The tensor of a channel of means, (groups, width), each value at most `bound` in size."""
    return {"mean": schema.Tensor(shape, encoding, encoding, -bound, bound)}


def check_observation_size(n_avg: int, min_count: int) -> None:
    """Refuse observations of one sample, unless groups of one sample are uploaded too."""
    if n_avg == 1 < min_count:
        raise ConfigurationError(
            "n_avg is 1; it must be a whole number, 2 or more: an observation of one sample is that sample's "
            "features. If they may leave the learner, set min_count=1"
        )


def refuse_single_samples(min_count: int) -> None:
    """Refuse groups of one sample, whose mean is that sample, where uploads leave for a relay or other members."""
    if min_count < 2:
        raise ConfigurationError(
            "min_count is 1, and features of single samples would leave the members; over a relay use 2 or more"
        )
