"""Which settings of a channel all learners of a federation must share, and which each may choose for itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from consilience.wire import schema
from consilience.wire.encodings import encoding_name
from consilience.wire.robustness import PLAIN


def without_local_choices(channel: schema.Channel) -> schema.Channel:
    """The channel without what a learner may choose: bounds of values, and entries uploaded to or drawn from a pool.

    Nor does it have how the relay aggregates, which no learner need know.

    Learners whose channels are equal after this can share them.
    """
    unbounded = {name: replace(t, low=-math.inf, high=math.inf) for name, t in channel.tensors.items()}
    if isinstance(channel, schema.Pool):
        return replace(channel, tensors=unbounded, keep=1, draw=1)
    if isinstance(channel, schema.Mean):
        return replace(channel, tensors=unbounded, robustness=PLAIN)
    return replace(channel, tensors=unbounded)


def describe_difference(one: schema.Channel, other: schema.Channel) -> str:
    """Why two channels of one name cannot be shared."""
    a, b = one.tensors, other.tensors
    if one.public_set != other.public_set:
        here, there = one.public_set[:12], other.public_set[:12]
        return f"their public sets differ (SHA-256 {here}... at one and {there}... at the other)"
    for key in [*a, *b]:
        if key not in a or key not in b:
            return f"only one of them has {key!r}"
        if a[key].shape != b[key].shape:
            return f"{key!r} is {a[key].shape} at one and {b[key].shape} at the other"
        for way, mine, theirs in (("uploaded", a[key].up, b[key].up), ("downloaded", a[key].down, b[key].down)):
            if mine != theirs:
                return f"{key!r} is {way} in {encoding_name(mine)} at one and {encoding_name(theirs)} at the other"
    return "their settings differ"


def merge_channels(offers: Iterable[Mapping[str, schema.Channel]]) -> dict[str, schema.Channel]:
    """The channels of learners that can share them, with the most entries and the widest bounds of any learner."""
    merged: dict[str, schema.Channel] = {}
    for name, channel in (pair for channels in offers for pair in channels.items()):
        merged[name] = _widest(channel, merged[name]) if name in merged else channel
    return merged


def _widest(one: schema.Channel, other: schema.Channel) -> schema.Channel:
    tensors = {
        k: replace(t, low=min(t.low, other.tensors[k].low), high=max(t.high, other.tensors[k].high))
        for k, t in one.tensors.items()
    }
    if isinstance(one, schema.Pool) and isinstance(other, schema.Pool):
        return replace(one, tensors=tensors, keep=max(one.keep, other.keep), draw=max(one.draw, other.draw))
    return replace(one, tensors=tensors)
