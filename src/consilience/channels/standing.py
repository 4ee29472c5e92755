"""A standing mean: everybody's newest contribution counts until it is replaced."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, device

from consilience import schema
from consilience.channels.answer import Answer, Numbers, Tensors, added, by_row, checked, double, span
from consilience.encodings import Array


class StandingMean:
    """The weighted mean of each member's newest contribution.

    A put and an answer cost O(size), however many members there are: putting again takes the old contribution out of
    the running sums and adds the new one.
    """

    def __init__(self, channel: schema.Mean, members: int, like: Array) -> None:
        xp, place = array_namespace(like), device(like)
        self.channel, self.members = channel, members
        shapes = {k: t.shape for k, t in channel.tensors.items()}
        self.values = {k: xp.zeros((members, *s), dtype=like.dtype, device=place) for k, s in shapes.items()}
        self.weights = xp.zeros((members, *channel.rows), dtype=xp.float64, device=place)
        self.sums = {k: xp.zeros(s, dtype=xp.float64, device=place) for k, s in shapes.items()}
        self.count = xp.zeros(channel.rows, dtype=xp.float64, device=place)
        self.holders = _holders(self.weights)  # members who have the row
        self.put_at = np.full(members, -1, dtype=np.int64)  # the round of each member's newest contribution

    def put(self, members: Numbers, tensors: Tensors, weights: Array, now: int = 0) -> None:
        """Take contributions (k, ...) with weights (k, *rows), replacing what those members had put."""
        who = checked(members, self.members, self.channel.name)
        self._exchange(who, tensors, double(weights))
        self.put_at[who] = now

    def expire(self, before: int) -> list[int]:
        """Forget members whose newest contribution is older than `before`, and say who they were."""
        gone = np.flatnonzero((self.put_at >= 0) & (self.put_at < before))
        if gone.size:
            nothing = {k: v[gone] * 0 for k, v in self.values.items()}
            self._exchange(gone, nothing, self.weights[gone] * 0)
            self.put_at[gone] = -1
        return [int(g) for g in gone]

    def _exchange(self, who: np.ndarray, tensors: Tensors, weights: Array) -> None:
        xp, at = array_namespace(weights), span(who)
        old = self.weights[at]
        for name, total in self.sums.items():
            kept = self.values[name]
            fresh, stale = double(tensors[name]), double(kept[at])
            self.sums[name] = added(total, by_row(weights, fresh) * fresh - by_row(old, stale) * stale)
            kept[at] = tensors[name]
        self.count = self.count + xp.sum(weights - old, axis=0)
        self.holders = self.holders + _holders(weights) - _holders(old)
        self.weights[at] = weights
        self._clear(self.holders == 0)

    def _clear(self, rows: Array) -> None:
        """Nothing stays of rows that nobody has: what fractions leave when they are taken out again is not quite 0."""
        xp = array_namespace(rows)
        self.count = xp.where(rows, xp.zeros_like(self.count), self.count)
        for name, total in self.sums.items():
            self.sums[name] = xp.where(by_row(rows, total), xp.zeros_like(total), total)

    def answer(self) -> Answer:
        """The mean over everybody; rows nobody has are zeros with count 0."""
        tensors = {}
        for name, total in self.sums.items():
            xp = array_namespace(total)
            count = xp.reshape(self.count, self.count.shape + (1,) * (total.ndim - self.count.ndim))
            mean = total / xp.where(count > 0, count, xp.ones_like(count))
            tensors[name] = xp.astype(xp.where(count > 0, mean, xp.zeros_like(mean)), self.values[name].dtype)
        return Answer(tensors, self.count)

    def own(self, members: Numbers) -> Answer:
        """What each member alone has put, (members, ...): the answer under the scope "oneself"."""
        who = checked(members, self.members, self.channel.name)
        # Copies: the next put changes the values in place.
        return Answer({k: v[who] for k, v in self.values.items()}, self.weights[who])

    def state(self) -> dict[str, Array]:
        """Everything a restart needs."""
        named = {f"values.{k}": v for k, v in self.values.items()} | {f"sums.{k}": v for k, v in self.sums.items()}
        return named | {"weights": self.weights, "count": self.count, "put_at": self.put_at}

    def load(self, state: Tensors) -> None:
        """Go on from what `state` gave."""
        self.values = {k: state[f"values.{k}"] for k in self.values}
        self.sums = {k: state[f"sums.{k}"] for k in self.sums}
        self.weights, self.count = state["weights"], state["count"]
        self.holders = _holders(self.weights)
        self.put_at = np.array(state["put_at"].tolist(), dtype=np.int64)


def _holders(weights: Array) -> Array:
    """How many of these weigh anything, by row."""
    xp = array_namespace(weights)
    return xp.sum(xp.astype(weights > 0, xp.int64), axis=0)
