"""What a relay keeps: running means and pools, and nothing about learning.

One code for the relay (NumPy) and the simulator (torch), written against the array-API standard. Members are numbers;
a put names several at once, so that one request and a whole simulated federation take the same path.
"""

from __future__ import annotations

from consilience.channels.base import Answer, Tensors, as_slice, empty_answer
from consilience.channels.moving_mean import MovingMean
from consilience.channels.pool import EntryPool, available_entries, draw_entries, draw_from, gather_entries
from consilience.channels.standing_mean import RunningMean, StandingMean
from consilience.wire import schema
from consilience.wire.encodings import Array

AnyChannel = StandingMean | MovingMean | EntryPool


def build_channel(channel: schema.Channel, members: int, start: Tensors, like: Array) -> AnyChannel:
    """The channel itself, for a schema; `like` says which arrays it keeps."""
    if isinstance(channel, schema.Pool):
        return EntryPool(channel, members, like)
    if not isinstance(channel, schema.Mean):
        raise TypeError(f"no such channel: {type(channel).__name__}")
    return MovingMean(channel, members, start) if channel.moving else StandingMean(channel, members, like)


__all__ = [
    "Answer",
    "AnyChannel",
    "EntryPool",
    "MovingMean",
    "RunningMean",
    "StandingMean",
    "Tensors",
    "as_slice",
    "available_entries",
    "build_channel",
    "draw_entries",
    "draw_from",
    "empty_answer",
    "gather_entries",
]
