"""A standing mean: everybody's newest contribution counts until it is replaced."""

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
from consilience.wire import schema
from consilience.wire.encodings import Array


class RunningMean:
    """The weighted mean of contributions of which each is told when it comes and when it goes.

    Coming, going and answering cost O(size), however many there are. Sums are replaced and never written into, so
    that a copy of the object is how things stood.
    """

    def __init__(self, channel: schema.Mean, like: Array) -> None:
        xp, place = array_namespace(like), device(like)
        self.channel, self.dtype = channel, like.dtype
        shapes = {k: t.shape for k, t in channel.tensors.items()}
        self.sums = {k: xp.zeros(s, dtype=xp.float64, device=place) for k, s in shapes.items()}
        self.count = xp.zeros(channel.rows, dtype=xp.float64, device=place)
        self.holders = xp.zeros(channel.rows, dtype=xp.int64, device=place)  # contributions that have the row

    def exchange(self, fresh: Tensors, weights: Array, stale: Tensors, old: Array) -> None:
        """Let `fresh` contributions (k, ...) come with their weights (k, *rows), and `stale` ones go with theirs."""
        xp = array_namespace(weights)
        sums = {}
        for name, total in self.sums.items():
            came, went = as_float64(fresh[name]), as_float64(stale[name])
            sums[name] = add_in_order(total, broadcast_rows(weights, came) * came - broadcast_rows(old, went) * went)
        self.sums, self.count = sums, self.count + xp.sum(weights - old, axis=0)
        self.holders = self.holders + _holders(weights) - _holders(old)
        self.clear()

    def clear(self) -> None:
        """Let nothing stay of rows that nobody has: what fractions leave when they are taken out is not quite 0."""
        xp, rows = array_namespace(self.count), self.holders == 0
        self.count = xp.where(rows, xp.zeros_like(self.count), self.count)
        self.sums = {
            k: xp.where(broadcast_rows(rows, total), xp.zeros_like(total), total) for k, total in self.sums.items()
        }

    def answer(self) -> Answer:
        """The mean over everybody; rows nobody has are zeros with count 0."""
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
        """Go on from what `state` gave."""
        self.sums = {k: state[f"sums.{k}"] for k in self.sums}
        self.count, self.holders = state["count"], state["holders"]


class StandingMean(RunningMean):
    """The weighted mean of each member's newest contribution: putting again takes the old one out."""

    def __init__(self, channel: schema.Mean, members: int, like: Array) -> None:
        super().__init__(channel, like)
        xp, place = array_namespace(like), device(like)
        self.members = members
        shapes = {k: t.shape for k, t in channel.tensors.items()}
        self.values = {k: xp.zeros((members, *s), dtype=like.dtype, device=place) for k, s in shapes.items()}
        self.weights = xp.zeros((members, *channel.rows), dtype=xp.float64, device=place)
        self.uploaded_at = np.full(members, -1, dtype=np.int64)  # the round of each member's newest contribution

    def upload(self, members: MemberNumbers, tensors: Tensors, weights: Array, now: int = 0) -> None:
        """Take contributions (k, ...) with weights (k, *rows), replacing what those members had put."""
        who = check_members(members, self.members, self.channel.name)
        self._replace(who, tensors, as_float64(weights))
        self.uploaded_at[who] = now

    def expire(self, before: int) -> list[int]:
        """Forget members whose newest contribution is older than `before`, and say who they were."""
        gone = np.flatnonzero((self.uploaded_at >= 0) & (self.uploaded_at < before))
        if gone.size:
            nothing = {k: v[gone] * 0 for k, v in self.values.items()}
            self._replace(gone, nothing, self.weights[gone] * 0)
            self.uploaded_at[gone] = -1
        return [int(g) for g in gone]

    def _replace(self, who: np.ndarray, tensors: Tensors, weights: Array) -> None:
        at = as_slice(who)
        self.exchange(tensors, weights, {k: v[at] for k, v in self.values.items()}, self.weights[at])
        for name, kept in self.values.items():
            kept[at] = tensors[name]
        self.weights[at] = weights

    def own_contributions(self, members: MemberNumbers) -> Answer:
        """What each member alone has put, (members, ...): the answer under the scope "oneself"."""
        who = check_members(members, self.members, self.channel.name)
        # Copies: the next put changes the values in place.
        return Answer({k: v[who] for k, v in self.values.items()}, self.weights[who])

    def state(self) -> dict[str, Array]:
        """Everything a restart needs."""
        named = {f"values.{k}": v for k, v in self.values.items()} | {f"sums.{k}": v for k, v in self.sums.items()}
        return named | {"weights": self.weights, "count": self.count, "uploaded_at": self.uploaded_at}

    def load(self, state: Tensors) -> None:
        """Go on from what `state` gave."""
        self.values = {k: state[f"values.{k}"] for k in self.values}
        self.weights = state["weights"]
        super().load({**state, "holders": _holders(self.weights)})
        self.uploaded_at = np.array(state["uploaded_at"].tolist(), dtype=np.int64)


def _holders(weights: Array) -> Array:
    """How many of these weigh anything, by row."""
    xp = array_namespace(weights)
    return xp.sum(xp.astype(weights > 0, xp.int64), axis=0)
