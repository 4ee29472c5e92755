"""A moving mean: common values that move by the mean of the members' changes, round by round."""

from __future__ import annotations

import math
from itertools import takewhile

import numpy as np
from array_api_compat import array_namespace, device

from consilience.channels.base import Answer, MemberNumbers, Tensors, add_in_order, as_float64, check_members
from consilience.errors import ChannelError
from consilience.randomness import coin_flips
from consilience.wire import schema
from consilience.wire.encodings import Array, is_vote


class MovingMean:
    """Common values that move by the mean of the members' changes, each change counted once.

    Contributions since the last close are added in member order whatever order they came in, so that the same
    contributions give the same bits: a contribution waits until every expected member before it has put or the channel
    closes. The reply is quantized once, with error feedback, and added to the common values here and at every member.
    """

    def __init__(self, channel: schema.Mean, members: int, start: Tensors) -> None:
        if set(start) != set(channel.tensors):
            raise ChannelError(
                f"{channel.name}: starts from values for {sorted(start)}; a moving mean needs one for each of its "
                f"tensors, {sorted(channel.tensors)}"
            )
        self.channel, self.members = channel, members
        self.common = dict(start)
        self._total = as_float64(self._flat({k: v[None] for k, v in self.common.items()})[0]) * 0
        self.errors = {k: v * 0 for k, v in self.common.items() if channel.tensors[k].down.feedback}
        self.reply: dict[str, Array] = {}  # by how much the common values moved last
        self.version, self.weight = 0, 0.0
        self.votes = all(is_vote(tensor.up) for tensor in channel.tensors.values())
        """Whether what is put up is counted and not weighed: each of one weight, or none."""
        self._waiting: dict[int, tuple[Array, float]] = {}
        self._expected: list[int] = []
        self._counted: set[int] = set()

    def expect(self, members: MemberNumbers) -> None:
        """Say who will put before the next close."""
        who = check_members(members, self.members, self.channel.name)
        self._expected = [m for m in sorted(who.tolist()) if m not in self._counted]
        self._fold_in_order()

    def upload(self, members: MemberNumbers, tensors: Tensors, weights: Array, versions: MemberNumbers) -> list[int]:
        """Take changes (k, ...) made from the common values at `versions`; members refused as too stale come back."""
        who = check_members(members, self.members, self.channel.name).tolist()
        penalized = zip(who, map(float, weights.tolist()), map(int, versions), strict=True)
        weighed = [self._weighed(*put) for put in penalized]
        for member, weight, change in zip(who, weighed, self._flat(tensors), strict=True):
            if weight is not None:
                self._waiting[member] = (change, weight)
        self._fold_in_order()
        return [member for member, weight in zip(who, weighed, strict=True) if weight is None]

    def _weighed(self, member: int, weight: float, version: int) -> float | None:
        """What a put will weigh, or None where it is too stale; one that may not be is refused before any is taken."""
        if member in self._counted or member in self._waiting:
            raise ChannelError(f"{self.channel.name}: member {member} has put since the last close already")
        if not 0 <= weight < math.inf:
            raise ChannelError(f"{self.channel.name}: member {member} weighs {weight}; it must be finite, 0 or more")
        if self.votes and weight not in (0.0, 1.0):
            raise ChannelError(f"{self.channel.name}: member {member} weighs {weight}; a vote weighs 1, or 0")
        staleness = self.version - version
        if staleness < 0:
            raise ChannelError(f"{self.channel.name}: version {version} is ahead of the channel's {self.version}")
        if staleness > self.channel.max_staleness:
            return None
        return weight if self.votes else weight / (1.0 + staleness) ** 0.5

    def _fold_in_order(self) -> None:
        following = list(takewhile(self._waiting.__contains__, self._expected))
        del self._expected[: len(following)]
        self._fold(following)

    def _fold(self, members: list[int]) -> None:
        if not members:
            return
        changes, weights = zip(*(self._waiting.pop(m) for m in members), strict=True)
        self._total = add_in_order(self._total, changes, weights)
        for weight in weights:  # one after the other: a sum of sums would round otherwise
            self.weight += weight
        self._counted |= set(members)

    @property
    def ready(self) -> bool:
        """Whether everybody expected, or the quorum, has put."""
        have, quorum = len(self._counted) + len(self._waiting), self.channel.quorum
        everybody = not self._expected and (quorum is None or bool(self._counted))  # where anybody was expected
        return have > 0 and (everybody or (quorum is not None and have >= quorum))

    def aggregate(self) -> bool:
        """Move the common values by the mean change; False, and nothing moves, where nobody weighed anything."""
        self._fold(sorted(self._waiting))
        weight, self.weight = self.weight, 0.0
        self._expected, self._counted = [], set()
        if weight <= 0:
            return False
        mean, self._total, start = self._total / weight, self._total * 0, 0
        for name, common in self.common.items():
            xp, stop = array_namespace(common), start + math.prod(common.shape)
            change = xp.astype(xp.reshape(mean[start:stop], common.shape), common.dtype)
            self.reply[name] = self._encoded(name, change)
            self.common[name] = common + self.reply[name]
            start = stop
        self.version += 1
        return True

    def _flat(self, tensors: Tensors) -> Array:
        """Contributions (k, ...) end to end, (k, size): adding one is then one sum, not one a tensor."""
        parts = [tensors[k] for k in self.common]
        xp = array_namespace(parts[0])
        return xp.concat([xp.reshape(p, (p.shape[0], math.prod(p.shape[1:]))) for p in parts], axis=1)

    def _encoded(self, name: str, change: Array) -> Array:
        encoding = self.channel.tensors[name].down
        if name not in self.errors:
            return encoding.quantize(self._decided(name, change) if is_vote(encoding) else change)
        wanted = change + self.errors[name]
        sent = encoding.quantize(wanted)
        self.errors[name] = wanted - sent
        return sent

    def _decided(self, name: str, change: Array) -> Array:
        """A tie is broken by a coin, which falls anew each time."""
        tie = coin_flips(f"{self.channel.name}.{name}", self.version, change)
        return array_namespace(change).where(change == 0, tie, change)

    def answer(self) -> Answer:
        """The common values as they are now, and how often they have moved."""
        some = next(iter(self.common.values()))
        xp = array_namespace(some)
        turn = xp.full((), float(self.version), dtype=xp.float64, device=device(some))
        return Answer(dict(self.common), turn, self.version)

    def state(self) -> dict[str, Array]:
        """Everything a restart needs; taken between rounds, when nothing waits."""
        named = {f"common.{k}": v for k, v in self.common.items()} | {f"errors.{k}": v for k, v in self.errors.items()}
        return named | {"version": np.array([self.version])}

    def load(self, state: Tensors) -> None:
        """Go on from what `state` gave."""
        self.common = {k: state[f"common.{k}"] for k in self.common}
        self.errors = {k: state[f"errors.{k}"] for k in self.errors}
        self.version = int(state["version"][0])
