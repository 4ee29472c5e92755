"""What a relay keeps: running means and pools, and nothing about learning.

One code for the relay (NumPy) and the simulator (torch), written against the array-API standard. Members are numbers;
a put names several at once, so that one request and a whole simulated federation take the same path.
"""

from __future__ import annotations

from consilience.channels.base import Answer, Tensors, nothing, span
from consilience.channels.moving_mean import MovingMean
from consilience.channels.pool import EntryPool, drawn, gathered, listed, picked
from consilience.channels.standing_mean import RunningMean, StandingMean
from consilience.wire import schema
from consilience.wire.encodings import Array

SavedRun = StandingMean | MovingMean | EntryPool


def keep(channel: schema.Channel, members: int, start: Tensors, like: Array) -> SavedRun:
    """The channel itself, for a schema; `like` says which arrays it keeps."""
    if isinstance(channel, schema.Pool):
        return EntryPool(channel, members, like)
    if not isinstance(channel, schema.Mean):
        raise TypeError(f"no such channel: {type(channel).__name__}")
    return MovingMean(channel, members, start) if channel.moving else StandingMean(channel, members, like)


__all__ = [
    "Answer",
    "EntryPool",
    "Kept",
    "MovingMean",
    "RunningMean",
    "StandingMean",
    "Tensors",
    "drawn",
    "gathered",
    "keep",
    "listed",
    "nothing",
    "picked",
    "span",
]
