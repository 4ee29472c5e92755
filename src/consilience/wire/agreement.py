"""What learners of one federation must agree on, and what each may choose for itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from consilience.wire import schema
from consilience.wire.encodings import encoding_name


def without_local_choices(channel: schema.Channel) -> schema.Channel:
    """What learners must agree on: neither how much each puts into a pool and takes out, nor what bounds its values."""
    free = {name: replace(t, low=-math.inf, high=math.inf) for name, t in channel.tensors.items()}
    if isinstance(channel, schema.Pool):
        return replace(channel, tensors=free, keep=1, draw=1)
    return replace(channel, tensors=free)


def describe_difference(one: schema.Channel, other: schema.Channel) -> str:
    """In a few words: in what two channels differ that should be one."""
    a, b = one.tensors, other.tensors
    if one.about != other.about:
        return f"their public sets differ (SHA-256 {one.about[:12]}... at one and {other.about[:12]}... at the other)"
    for key in [*a, *b]:
        if key not in a or key not in b:
            return f"only one of them has {key!r}"
        if a[key].shape != b[key].shape:
            return f"{key!r} is {a[key].shape} at one and {b[key].shape} at the other"
        for way, mine, theirs in (("", a[key].up, b[key].up), (" back", a[key].down, b[key].down)):
            if mine != theirs:
                return f"{key!r} travels{way} in {encoding_name(mine)} at one and {encoding_name(theirs)} at the other"
    return "their settings differ"


def merge_channels(offers: Iterable[Mapping[str, schema.Channel]]) -> dict[str, schema.Channel]:
    """The channels of learners who agree on them: with room for whoever puts most into a pool, and the wider bounds."""
    found: dict[str, schema.Channel] = {}
    for name, channel in (pair for channels in offers for pair in channels.items()):
        found[name] = _widened(channel, found[name]) if name in found else channel
    return found


def _widened(one: schema.Channel, other: schema.Channel) -> schema.Channel:
    tensors = {
        k: replace(t, low=min(t.low, other.tensors[k].low), high=max(t.high, other.tensors[k].high))
        for k, t in one.tensors.items()
    }
    if isinstance(one, schema.Pool) and isinstance(other, schema.Pool):
        return replace(one, tensors=tensors, keep=max(one.keep, other.keep), draw=max(one.draw, other.draw))
    return replace(one, tensors=tensors)
