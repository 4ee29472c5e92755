"""Chosen entries of a pool: those of other members that are nearest to the reader's own, or have the smallest loss."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from consilience.channels.base import Tensors, as_float64
from consilience.wire import schema
from consilience.wire.encodings import Array


def smallest_entries(
    channel: schema.Pool,
    distances: np.ndarray,
    present: np.ndarray,
    who: np.ndarray,
    draw: int,
    allowed: np.ndarray | None,
) -> np.ndarray:
    """Numbers of the entries with the smallest distances, (readers, draw) or by row; -1 where there are none.

    distances: (readers, entries, rows), infinite where nothing is known; their mean over the known rows counts, and
    where rows are drawn, every row by itself. present: (members, keep). A reader's own entries do not count.
    """
    rows = distances.shape[2]
    others = np.repeat(np.arange(len(present)), channel.keep)  # the member of each entry
    open_ = present.reshape(-1) & (others != who[:, None])
    if allowed is not None:
        open_ &= allowed[:, others]
    distances = np.where(open_[:, :, None], distances, np.inf)
    if channel.by == "member" or not channel.rows:
        shared = np.isfinite(distances)
        total = np.where(shared, distances, 0.0).sum(2) / np.maximum(shared.sum(2), 1)
        return _smallest(np.where(shared.any(2), total, np.inf), draw)
    picks = [_smallest(distances[:, :, row], draw) for row in range(rows)]
    return np.stack(picks, axis=-1).reshape(len(who), draw, *channel.rows)


def known_rows(weights: Array, rows: int) -> np.ndarray:
    """Whether each entry has each row, (entries, rows); weights: (members, keep, *rows)."""
    known: np.ndarray = np.array(weights.tolist()).reshape(-1, rows) > 0
    return known


def distances_to_newest(values: Tensors, weights: Array, who: np.ndarray, rows: int) -> np.ndarray:
    """Mean squares of the differences to the readers' newest entries, (readers, entries, rows); infinite if unknown.

    values, weights: (members, keep, ...).
    """
    members, keep = weights.shape[:2]
    has = known_rows(weights, rows)
    mine = has[who * keep]  # (readers, rows)
    total, width = np.zeros((len(who), members * keep, rows)), 0
    for value in values.values():
        xp = array_namespace(value)
        flat = as_float64(xp.reshape(value, (members * keep, rows, -1)))
        width += flat.shape[2]
        for row in range(rows):
            part = flat[:, row]  # (entries, rest)
            own = part[who * keep]
            cross = xp.matmul(own, part.T)  # (readers, entries)
            square = xp.sum(part * part, axis=1)
            found = square[who * keep][:, None] + square[None] - 2 * cross
            total[:, :, row] += np.maximum(np.array(found.tolist()), 0.0)
    return np.where(mine[:, None] & has[None], total / max(width, 1), np.inf)


def _smallest(distances: np.ndarray, draw: int) -> np.ndarray:
    """The entries with the smallest distances, (readers, draw), all in turn if there are fewer; -1 if none."""
    order = np.argsort(distances, axis=1, kind="stable")
    count = np.isfinite(distances).sum(1)[:, None]  # (readers, 1)
    places = np.arange(draw)[None] % np.maximum(count, 1)
    return np.where(count > 0, np.take_along_axis(order, places, axis=1), -1)
