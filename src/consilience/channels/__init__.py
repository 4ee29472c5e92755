"""The channels by which a relay combines uploads: standing means, moving means and pools; nothing about learning.

One implementation serves the relay (NumPy) and the simulator (torch), written against the array-API standard. Members
are numbers; an upload may be of several members, so one request and an entire simulated federation use the same code.
"""

from __future__ import annotations

from consilience.channels.base import LAST_MOVE, Answer, Tensors, as_slice, empty_answer
from consilience.channels.moving_mean import MovingMean
from consilience.channels.own_values import OwnMovingMean
from consilience.channels.pool import (
    EntryPool,
    available_entries,
    draw_allowed,
    draw_entries,
    draw_from,
    gather_entries,
)
from consilience.channels.scope import Scope, scoped_mean
from consilience.channels.standing_mean import RunningMean, StandingMean
from consilience.wire import schema
from consilience.wire.encodings import Array

AnyChannel = StandingMean | MovingMean | EntryPool


def build_channel(channel: schema.Channel, members: int, start: Tensors, like: Array) -> AnyChannel:
    """The channel of a schema; its arrays are of the library, type and device of `like`."""
    if isinstance(channel, schema.Pool):
        return EntryPool(channel, members, like)
    if not isinstance(channel, schema.Mean):
        raise TypeError(f"channel {channel.name!r} is a {type(channel).__name__}; a Mean or a Pool is needed")
    return MovingMean(channel, members, start) if channel.moving else StandingMean(channel, members, like)


__all__ = [
    "LAST_MOVE",
    "Answer",
    "AnyChannel",
    "EntryPool",
    "MovingMean",
    "OwnMovingMean",
    "RunningMean",
    "Scope",
    "StandingMean",
    "Tensors",
    "as_slice",
    "available_entries",
    "build_channel",
    "draw_allowed",
    "draw_entries",
    "draw_from",
    "empty_answer",
    "gather_entries",
    "scoped_mean",
]
