"""A moving mean in which every member has values of its own: the mean of its partners' or neighbors' values."""

from __future__ import annotations

import math

import numpy as np
from array_api_compat import array_namespace, device

from consilience.channels.base import Answer, MemberNumbers, Tensors, as_float64, check_members
from consilience.channels.scope import Scope
from consilience.wire import schema
from consilience.wire.encodings import Array


class OwnMovingMean:
    """Values of each member's own, which at an aggregation move to the mean of its partners' changed values.

    A member's changed values are its own plus the change that it uploaded since the last aggregation; only those of
    members that uploaded count, by their weights, but in gossip, where the scope says who takes part. Moves are
    quantized with error feedback as the channel says, for every member by itself. All values are in memory, so it is
    for simulations.
    """

    def __init__(self, channel: schema.Mean, members: int, start: Tensors) -> None:
        self.channel, self.members, self.version = channel, members, 0
        self.common = {k: _repeated(v, members) for k, v in start.items()}  # (members, ...)
        self.residuals = {k: v * 0 for k, v in self.common.items() if channel.tensors[k].down.feedback}
        self._changes = {k: v * 0 for k, v in self.common.items()}
        self._weights = np.zeros(members)  # of the uploads since the last aggregation

    def upload(self, members: MemberNumbers, tensors: Tensors, weights: Array, now: int = 0) -> None:
        """Add changes (k, ...) that members made to their own values."""
        who = check_members(members, self.members, self.channel.name)
        for name, changes in self._changes.items():
            changes[who] = tensors[name]
        self._weights[who] = np.minimum(np.array(weights.tolist()), self.channel.robustness.weight_cap)

    def aggregate(self, scope: Scope | None) -> bool:
        """Move every member's values to the mean of its partners'; without a scope, of everybody's."""
        if not self._weights.any():
            return False
        matrix = self._matrix(scope)
        for name, values in self.common.items():
            xp = array_namespace(values)
            changed = as_float64(values) + as_float64(self._changes[name])
            shares = xp.asarray(matrix, dtype=xp.float64, device=device(values))
            mean = xp.matmul(shares, xp.reshape(changed, (self.members, math.prod(values.shape[1:]))))
            move = xp.reshape(mean, values.shape) - as_float64(values)
            self.common[name] = values + self._sent(name, xp.astype(move, values.dtype))
            self._changes[name] = values * 0
        self.version, self._weights = self.version + 1, np.zeros(self.members)
        return True

    def _matrix(self, scope: Scope | None) -> np.ndarray:
        """Shares of the members' values in each one's new values, (members, members); rows add up to 1."""
        if scope is not None and scope.gossip:
            return scope.weights
        factors = (np.ones((self.members, self.members)) if scope is None else scope.weights) * self._weights
        total = factors.sum(1, keepdims=True)
        return np.where(total > 0, factors / np.where(total > 0, total, 1), np.eye(self.members))

    def _sent(self, name: str, move: Array) -> Array:
        """The moves (members, ...) as members decode them."""
        encoding = self.channel.tensors[name].down
        if not encoding.lossy:
            return move
        wanted = move + self.residuals[name] if name in self.residuals else move
        sent = array_namespace(move).stack([encoding.quantize(each) for each in wanted])
        if name in self.residuals:
            self.residuals[name] = wanted - sent
        return sent

    def answer(self, readers: MemberNumbers) -> Answer:
        """The readers' own values, (readers, ...), and how often they have moved."""
        who = check_members(readers, self.members, self.channel.name)
        some = next(iter(self.common.values()))
        xp = array_namespace(some)
        turns = xp.full((len(who),), float(self.version), dtype=xp.float64, device=device(some))
        return Answer({k: v[who] for k, v in self.common.items()}, turns, self.version)

    def state(self) -> dict[str, Array]:
        """Everything a restart needs; to be used when no contribution waits."""
        named = {f"common.{k}": v for k, v in self.common.items()}
        named |= {f"errors.{k}": v for k, v in self.residuals.items()}
        return named | {"version": np.array([self.version])}

    def load(self, state: Tensors) -> None:
        """Continue from what `state` returned."""
        self.common = {k: state[f"common.{k}"] for k in self.common}
        self.residuals = {k: state[f"errors.{k}"] for k in self.residuals}
        self.version = int(state["version"][0])


def _repeated(value: Array, members: int) -> Array:
    """One value for each member, (members, ...)."""
    xp = array_namespace(value)
    return xp.stack([value] * members)
