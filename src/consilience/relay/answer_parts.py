"""What an answer says of a standing mean or of a pool, and its tensors by name, within the charter's bounds."""

from __future__ import annotations

import numpy as np

from consilience.channels import Answer
from consilience.relay.messages import clip_to_bounds
from consilience.wire import schema
from consilience.wire.headers import Part

_LARGEST_COUNT = 2**31 - 1


def mean_to_send(channel: schema.Mean, mean: Answer) -> tuple[Part, dict[str, np.ndarray]]:
    """A standing mean."""
    tensors = clip_to_bounds(channel, {f"{channel.name}.{k}": t for k, t in mean.tensors.items()})
    if not channel.rows:
        return Part(weight=float(mean.count)), tensors
    counts = np.minimum(mean.count, _LARGEST_COUNT)
    whole = counts.astype(np.int32)
    return Part(), tensors | {f"{channel.name}.count": whole if np.array_equal(whole, counts) else counts}


def entries_to_send(channel: schema.Pool, drawn: Answer) -> tuple[Part, dict[str, np.ndarray]]:
    """Entries drawn from a pool; without weights by row, those that are missing go last."""
    tensors = clip_to_bounds(channel, {f"{channel.name}.{k}": t for k, t in drawn.tensors.items()})
    draw = len(drawn.count)
    if channel.rows:
        return Part(entries=draw), tensors | {f"{channel.name}.count": drawn.count}
    there = drawn.count > 0
    last = np.argsort(~there, kind="stable")  # one that was removed since the snapshot may be in the middle
    return Part(entries=draw, weight=float(there.sum())), {k: t[last] for k, t in tensors.items()}
