"""A standing mean: each member's newest contribution counts until it is replaced."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, device

from consilience.channels.base import (
    Answer,
    MemberNumbers,
    Tensors,
    add_in_order,
    as_float64,
    as_slice,
    broadcast_rows,
    check_members,
)
from consilience.channels.robust import for_sums, robust_mean
from consilience.channels.scope import scoped_mean
from consilience.wire import schema
from consilience.wire.encodings import Array


class RunningMean:
    """The weighted mean of contributions that are added and removed one by one; it stores only their sums.

    Adding, removing and answering cost O(size), however many contributions there are. Sums are replaced and never
    changed in place, so a shallow copy is a snapshot. Weights are capped and norms clipped by a fixed limit as the
    channel says; what needs all contributions at once, such as a median, is not in the sums.
    """

    def __init__(self, channel: schema.Mean, like: Array) -> None:
        xp, place = array_namespace(like), device(like)
        self.channel, self.dtype = channel, like.dtype
        shapes = {k: t.shape for k, t in channel.tensors.items()}
        self.sums = {k: xp.zeros(s, dtype=xp.float64, device=place) for k, s in shapes.items()}
        self.count = xp.zeros(channel.rows, dtype=xp.float64, device=place)
        self.holders = xp.zeros(channel.rows, dtype=xp.int64, device=place)  # how many contributions have the row

    def exchange(self, new: Tensors, weights: Array, old: Tensors, old_weights: Array) -> None:
        """Add new contributions (k, ...) with weights (k, *rows), and remove the old ones with theirs."""
        xp = array_namespace(weights)
        new, weights = for_sums(self.channel, new, weights)
        old, old_weights = for_sums(self.channel, old, old_weights)
        sums = {}
        for name, total in self.sums.items():
            added, removed = as_float64(new[name]), as_float64(old[name])
            sums[name] = add_in_order(
                total, broadcast_rows(weights, added) * added - broadcast_rows(old_weights, removed) * removed
            )
        self.sums, self.count = sums, self.count + xp.sum(weights - old_weights, axis=0)
        self.holders = self.holders + _holders(weights) - _holders(old_weights)
        self.zero_empty_rows()

    def zero_empty_rows(self) -> None:
        """Set rows without contributions to 0: after additions and removals of fractions, sums are not exactly 0."""
        xp, rows = array_namespace(self.count), self.holders == 0
        if isinstance(rows, np.ndarray) and not rows.any():  # on an accelerator the question would take longer
            return
        self.count = xp.where(rows, xp.zeros_like(self.count), self.count)
        self.sums = {
            k: xp.where(broadcast_rows(rows, total), xp.zeros_like(total), total) for k, total in self.sums.items()
        }

    def answer(self) -> Answer:
        """Uploads averaged: the mean over all members; rows that no member has are zeros with count 0."""
        tensors = {}
        for name, total in self.sums.items():
            xp = array_namespace(total)
            count = xp.reshape(self.count, self.count.shape + (1,) * (total.ndim - self.count.ndim))
            mean = total / xp.where(count > 0, count, xp.ones_like(count))
            tensors[name] = xp.astype(xp.where(count > 0, mean, xp.zeros_like(mean)), self.dtype)
        return Answer(tensors, self.count)

    def state(self) -> dict[str, Array]:
        """Everything a restart needs."""
        return {f"sums.{k}": v for k, v in self.sums.items()} | {"count": self.count, "holders": self.holders}

    def load(self, state: Tensors) -> None:
        """Continue from what `state` returned."""
        self.sums = {k: state[f"sums.{k}"] for k in self.sums}
        self.count, self.holders = state["count"], state["holders"]


class StandingMean(RunningMean):
    """The weighted mean of each member's newest contribution: a new upload replaces the member's last."""

    def __init__(self, channel: schema.Mean, members: int, like: Array) -> None:
        super().__init__(channel, like)
        xp, place = array_namespace(like), device(like)
        self.members = members
        shapes = {k: t.shape for k, t in channel.tensors.items()}
        self.values = {k: xp.zeros((members, *s), dtype=like.dtype, device=place) for k, s in shapes.items()}
        self.weights = xp.zeros((members, *channel.rows), dtype=xp.float64, device=place)
        self.uploaded_at = np.full(members, -1, dtype=np.int64)  # the round of each member's newest contribution

    def upload(self, members: MemberNumbers, tensors: Tensors, weights: Array, now: int = 0) -> None:
        """Add contributions (k, ...) with weights (k, *rows), in place of those members' last."""
        who = check_members(members, self.members, self.channel.name)
        self._replace(who, tensors, as_float64(weights))
        self.uploaded_at[who] = now

    def expire(self, before: int) -> list[int]:
        """Remove contributions older than round `before`; returns their members."""
        expired = np.flatnonzero((self.uploaded_at >= 0) & (self.uploaded_at < before))
        if expired.size:
            zeros = {k: v[expired] * 0 for k, v in self.values.items()}
            self._replace(expired, zeros, self.weights[expired] * 0)
            self.uploaded_at[expired] = -1
        return [int(member) for member in expired]

    def _replace(self, who: np.ndarray, tensors: Tensors, weights: Array) -> None:
        at = as_slice(who)
        self.exchange(tensors, weights, {k: v[at] for k, v in self.values.items()}, self.weights[at])
        for name, values in self.values.items():
            values[at] = tensors[name]
        self.weights[at] = weights

    def answer(self) -> Answer:
        """Uploads averaged; from all contributions where the channel needs all of them at once."""
        if not self.channel.robustness.needs_all:
            return super().answer()
        found = robust_mean(self.channel, self.values, self.weights)
        return Answer({k: array_namespace(v).astype(v, self.dtype) for k, v in found.items()}, self.count)

    def answer_within(self, matrix: np.ndarray) -> Answer:
        """A mean for each reader, (readers, ...), by how much of each member's contribution it takes."""
        return scoped_mean(self.channel, self.values, self.weights, matrix)

    def own_contributions(self, members: MemberNumbers) -> Answer:
        """Each member's own contribution, (members, ...): the answer of a channel with the scope "oneself"."""
        who = check_members(members, self.members, self.channel.name)
        # Copies: the next upload changes the values in place.
        return Answer({k: v[who] for k, v in self.values.items()}, self.weights[who])

    def state(self) -> dict[str, Array]:
        """Everything a restart needs."""
        named = {f"values.{k}": v for k, v in self.values.items()} | {f"sums.{k}": v for k, v in self.sums.items()}
        return named | {"weights": self.weights, "count": self.count, "uploaded_at": self.uploaded_at}

    def load(self, state: Tensors) -> None:
        """Continue from what `state` returned."""
        self.values = {k: state[f"values.{k}"] for k in self.values}
        self.weights = state["weights"]
        super().load({**state, "holders": _holders(self.weights)})
        self.uploaded_at = np.array(state["uploaded_at"].tolist(), dtype=np.int64)


def _holders(weights: Array) -> Array:
    """How many of these weights are above 0, by row."""
    if isinstance(weights, np.ndarray):
        return (weights > 0).sum(axis=0, dtype=np.int64)
    xp = array_namespace(weights)
    return xp.sum(xp.astype(weights > 0, xp.int64), axis=0)
