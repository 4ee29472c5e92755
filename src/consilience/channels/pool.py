"""A pool: each member's newest entries, of which a reader gets a few random ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from consilience.channels.base import (
    Answer,
    MemberNumbers,
    Tensors,
    as_float64,
    as_slice,
    broadcast_rows,
    check_members,
)
from consilience.channels.nearest import distances_to_newest, known_rows, smallest_entries
from consilience.errors import ChannelError
from consilience.randomness import uniform
from consilience.wire import schema
from consilience.wire.encodings import Array


class EntryPool:
    """Each member's newest entries, of which an answer is a few random ones."""

    def __init__(self, channel: schema.Pool, members: int, like: Array) -> None:
        xp, place = array_namespace(like), device(like)
        self.channel, self.members = channel, members
        lead = (members, channel.keep)
        self.values = {
            k: xp.zeros((*lead, *t.shape), dtype=like.dtype, device=place) for k, t in channel.tensors.items()
        }
        self.weights = xp.zeros((*lead, *channel.rows), dtype=xp.float64, device=place)
        self.present = np.zeros(lead, dtype=bool)

    def upload(self, members: MemberNumbers, tensors: Tensors, weights: Array, *, replace: bool = False) -> None:
        """Add up to `keep` new entries of each member: tensors (k, entries, ...), weights (k, entries, *rows).

        replace: these are all of a member's entries; its older ones are removed.
        """
        who = check_members(members, self.members, self.channel.name)
        at, new = as_slice(who), weights.shape[1]
        if new > self.channel.keep:
            raise ChannelError(
                f"{self.channel.name}: {new} entries uploaded at once; at most {self.channel.keep} are stored"
            )
        for store, fresh in [(self.values[k], tensors[k]) for k in self.values] + [(self.weights, as_float64(weights))]:
            xp = array_namespace(store)
            store[at] = xp.concat([fresh, store[at][:, : self.channel.keep - new]], axis=1)
        older = self.present[who][:, : self.channel.keep - new] & (not replace)
        self.present[who] = np.concatenate([np.ones((len(who), new), dtype=bool), older], axis=1)

    def answer(
        self,
        readers: MemberNumbers,
        *where: int,
        draw: int = 0,
        allowed: np.ndarray | None = None,
        nearest: bool = False,
        losses: np.ndarray | None = None,
    ) -> Answer:
        """Random entries for each reader, (readers, draw, ...), seeded by `where`: a seed and the round.

        draw: how many; 0 is as many as the channel says. allowed: (readers, members), whose entries a reader may get;
        by default everybody's. nearest: in place of random entries, those of others nearest to the reader's own.
        losses: (readers, members x keep), in place of random entries, those of others with the smallest.
        """
        who, draw = check_members(readers, self.members, self.channel.name), draw or self.channel.draw
        weights = self.weights
        known = weights if isinstance(weights, np.ndarray) or self.channel.by == "member" else _as_numpy(weights)
        if nearest or losses is not None:
            distances = self._distances(who, losses)
            picks = smallest_entries(self.channel, distances, self.present, who, draw, allowed)
        elif allowed is None:
            picks = draw_entries(self.channel, self.present, known, who, where, draw)
        else:
            picks = draw_allowed(
                self.channel, available_entries(self.channel, self.present, known), who, where, draw, allowed
            )
        return gather_entries(self.channel, picks, self.values, weights)

    def _distances(self, who: np.ndarray, losses: np.ndarray | None) -> np.ndarray:
        """By what entries are chosen, (readers, entries, rows): losses, or how far they are from readers' newest."""
        rows = math.prod(self.channel.rows)
        if losses is None:
            return distances_to_newest(self.values, self.weights, who, rows)
        return np.where(known_rows(self.weights, rows)[None], losses[:, :, None], np.inf)

    def clear(self) -> None:
        """Remove all entries."""
        self.present[:] = False

    def same_for_all_readers(self, draw: int) -> bool:
        """Whether every reader gets the same entries, which are then all of them."""
        return not self.channel.repeat and self.channel.include_self and int(self.present.sum()) <= draw

    def state(self) -> dict[str, Array]:
        """Everything a restart needs."""
        named = {f"values.{k}": v for k, v in self.values.items()}
        return named | {"weights": self.weights, "present": self.present.astype(np.uint8)}

    def load(self, state: Tensors) -> None:
        """Continue from what `state` returned."""
        self.values = {k: state[f"values.{k}"] for k in self.values}
        self.weights = state["weights"]
        self.present = np.array(state["present"].tolist(), dtype=bool)


def draw_entries(
    channel: schema.Pool, present: np.ndarray, weights: Array, who: np.ndarray, where: tuple[int, ...], draw: int
) -> np.ndarray:
    """Numbers of the entries drawn for each reader, (readers, draw), or (readers, draw, *rows) by row; -1 for none.

    present: (members, keep), which entries each member has. weights: (members, keep, *rows), used if rows are drawn.
    where: a seed, the round. No entry is drawn twice if there are enough.
    """
    return draw_from(channel, available_entries(channel, present, weights), who, where, draw)


def available_entries(channel: schema.Pool, present: np.ndarray, weights: Array) -> list[np.ndarray]:
    """Numbers of the entries that can be drawn, in order: one list, or one for each row if rows are drawn."""
    have = present.reshape(-1)
    if channel.by == "member" or not channel.rows:
        return [np.flatnonzero(have)]
    rows = have[:, None] & (weights.reshape(len(have), math.prod(channel.rows)) > 0)  # (entries, rows)
    return [np.flatnonzero(rows[:, i]) for i in range(rows.shape[1])]


def draw_from(
    channel: schema.Pool, entries: list[np.ndarray], who: np.ndarray, where: tuple[int, ...], draw: int
) -> np.ndarray:
    """`draw_entries` from what `available_entries` returned: the time of a draw does not grow with the pool."""
    rows = channel.rows if channel.by == "row" else ()
    picks = [_picks(channel, some, who, row, where, draw) for some, row in zip(entries, np.ndindex(*rows), strict=True)]
    return np.stack(picks, axis=-1).reshape(len(who), draw, *rows)


def draw_allowed(
    channel: schema.Pool,
    entries: list[np.ndarray],
    who: np.ndarray,
    where: tuple[int, ...],
    draw: int,
    allowed: np.ndarray,
) -> np.ndarray:
    """`draw_from` with entries only of those members that each reader may get, (readers, members)."""
    picks = []
    for i, reader in enumerate(who):
        mine = [each[allowed[i][each // channel.keep]] for each in entries]
        picks.append(draw_from(channel, mine, np.array([reader]), where, draw))
    return np.concatenate(picks)


def _picks(
    channel: schema.Pool, entries: np.ndarray, who: np.ndarray, row: tuple[int, ...], where: tuple[int, ...], draw: int
) -> np.ndarray:
    if channel.scope == "oneself":
        return np.stack([_cycle(entries[slice(*_own(channel, entries, reader))], draw) for reader in who])
    # One number is mixed many times faster than an array of one; a relay draws for one reader at a time.
    readers, draws = int(who[0]) if len(who) == 1 else who[:, None], 0 if draw == 1 else np.arange(draw)
    chance = uniform(f"pool {channel.name}", *where, *row, readers, draws).reshape(len(who), draw)
    if channel.include_self:
        return _at(entries, _distinct(chance, len(entries), channel.repeat))
    picks = []
    for i, reader in enumerate(who):  # without its own entries
        first, last = _own(channel, entries, reader)
        places = _distinct(chance[i : i + 1], len(entries) - (last - first), channel.repeat)[0]
        picks.append(_at(entries, np.where(places >= first, places + (last - first), places)))
    return np.stack(picks)


def _own(channel: schema.Pool, entries: np.ndarray, reader: int) -> tuple[int, int]:
    """Where a reader's own entries start and end among all, which are in order."""
    first, last = np.searchsorted(entries, [reader * channel.keep, (reader + 1) * channel.keep]).tolist()
    return first, last


def _at(entries: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The entries at these places; -1 if there is none."""
    return np.where(places >= 0, entries[places], -1) if len(entries) else np.full_like(places, -1)


def gather_entries(channel: schema.Pool, picks: np.ndarray, values: Tensors, weights: Array) -> Answer:
    """The picked entries, (readers, draw, ...), entire or row by row; 0 with count 0 for picks of -1.

    values, weights: (members, keep, ...), numbered as the picks are.
    """
    index: tuple[Any, ...] = (np.maximum(picks, 0),)
    rows = picks.shape[2:]
    index += tuple(np.arange(n).reshape((-1,) + (1,) * (len(rows) - 1 - i)) for i, n in enumerate(rows))
    taken = weights.reshape((-1, *channel.rows))[index]
    xp = array_namespace(taken)
    found = xp.asarray(picks >= 0, device=device(taken))
    found = xp.reshape(found, tuple(found.shape) + (1,) * (taken.ndim - found.ndim))
    count = xp.where(found, taken, xp.zeros_like(taken))
    tensors = {}
    for name, store in values.items():
        value = store.reshape((-1, *store.shape[2:]))[index]
        tensors[name] = xp.where(broadcast_rows(count, value) > 0, value, xp.zeros_like(value))
    return Answer(tensors, count)


def _as_numpy(array: Array) -> np.ndarray:
    return np.asarray(array.tolist())


def _cycle(entries: np.ndarray, draw: int, chance: float = 0.0) -> np.ndarray:
    """All entries in turn, from a random one on; -1 if there are none."""
    if not len(entries):
        return np.full(draw, -1)
    return entries[(int(chance * len(entries)) + np.arange(draw)) % len(entries)]


def _distinct(chance: np.ndarray, n: int, repeat: bool) -> np.ndarray:
    """Floyd's sampling without repetition, for many readers at once: places 0 to n - 1, (readers, draw).

    If n is not more than `draw`: all in turn, repeatedly; without `repeat`, each once and then -1.
    """
    readers, draw = chance.shape
    if n <= draw and not repeat:
        return np.tile(np.where(np.arange(draw) < n, np.arange(draw), -1), (readers, 1))
    if n <= draw:
        turns = [_cycle(np.arange(n), draw, float(c[0])) for c in chance]
        return np.stack(turns) if readers else np.zeros((0, draw), dtype=np.int64)
    picked = np.full((readers, draw), -1, dtype=np.int64)
    for j in range(draw):
        top = n - draw + j
        guess = (chance[:, j] * (top + 1)).astype(np.int64)
        taken = (picked[:, :j] == guess[:, None]).any(axis=1)
        picked[:, j] = np.where(taken, top, guess)
    return picked
