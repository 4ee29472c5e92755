"""How the means of a new charter resist a bad member: what its creator asks for, and defaults for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from consilience.wire import schema
from consilience.wire.robustness import PLAIN, Robustness

WEIGHT_MULTIPLE = 3
"""A member counts for at most this many times the creator's samples: one that lies has at most 25 % of the weight among
ten members of the creator's size, and one that is honest and has three times the creator's data loses nothing."""
CLIP_RATIO = 3.0
"""A longer contribution is shortened to this multiple of the median norm. Norms of honest learners with unequal data
differ by less, and a member that uploads the largest float counts as three."""


@dataclass(frozen=True)
class MeanRules:
    """What a creator asks of all means; defaults: whether what is not asked for gets a weight cap and a clip."""

    robustness: Robustness = PLAIN
    defaults: bool = True

    def apply(self, channel: schema.Channel, counts: Sequence[int]) -> schema.Channel:
        """A channel with these rules; counts: the creator's samples by class, empty if they are not known."""
        if not isinstance(channel, schema.Mean) or channel.scope == "oneself":
            return channel
        own = channel.robustness
        asked = self.robustness if replace(own, weight_cap=math.inf) == PLAIN else own
        asked = replace(asked, weight_cap=min(asked.weight_cap, own.weight_cap))  # an exchange may cap weights itself
        if channel.takes_votes:  # each counts for one, and all have the same norm
            return replace(channel, robustness=replace(asked.without_clip(), weight_cap=math.inf))
        if not self.defaults:
            return replace(channel, robustness=asked)
        cap, ratio = asked.weight_cap, asked.clip_ratio
        if cap == math.inf and any(counts):
            by_class = channel.rows[-1:] == (len(counts),)  # other rows, such as clusters, may have all samples
            cap = float(WEIGHT_MULTIPLE * (max(counts) if by_class else sum(counts)))
        if not asked.clips and asked.aggregation == "mean" and (channel.moving or not _bounded(channel)):
            ratio = CLIP_RATIO
        return replace(channel, robustness=replace(asked, weight_cap=cap, clip_ratio=ratio))


def _bounded(channel: schema.Mean) -> bool:
    """Whether bounds of values limit what a member can upload."""
    return all(math.isfinite(t.low) and math.isfinite(t.high) for t in channel.tensors.values())
