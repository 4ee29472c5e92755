"""A moving mean: common values that move by the mean of the members' changes, round by round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace, device

from consilience import schema
from consilience.channels.answer import Answer, Tensors, double
from consilience.encodings import Array
from consilience.errors import ChannelError


class MovingMean:
    """Common values that move by the mean of the members' changes, each change counted once.

    Contributions since the last close are added in member order whatever order they came in, so that the same
    contributions give the same bits: a contribution waits until every expected member before it has put or the channel
    closes. The reply is quantised once, with error feedback, and added to the common values here and at every member.
    """

    def __init__(self, channel: schema.Mean, start: Tensors) -> None:
        self.channel = channel
        self.common = dict(start)
        self.sums = {k: double(v) * 0 for k, v in self.common.items()}
        self.errors = {k: v * 0 for k, v in self.common.items() if channel.tensors[k].down.feedback}
        self.version, self.weight = 0, 0.0
        self._waiting: dict[int, tuple[dict[str, Array], float]] = {}
        self._expected: list[int] = []
        self._counted: set[int] = set()

    def expect(self, members: Sequence[int]) -> None:
        """Say who will put before the next close."""
        self._expected = sorted(int(m) for m in members)

    def put(self, members: Sequence[int], tensors: Tensors, weights: Array, versions: Sequence[int]) -> list[int]:
        """Take changes (k, ...) made from the common values at `versions`; members refused as too stale come back."""
        refused = []
        for i, (member, version) in enumerate(zip(members, versions, strict=True)):
            staleness = self.version - int(version)
            if member in self._counted or member in self._waiting:
                raise ChannelError(f"{self.channel.name}: member {member} has put since the last close already")
            if staleness < 0:
                raise ChannelError(f"{self.channel.name}: version {version} is ahead of the channel's {self.version}")
            if staleness > self.channel.max_staleness:
                refused.append(int(member))
                continue
            weight = float(weights[i]) / (1.0 + staleness) ** 0.5
            self._waiting[int(member)] = ({k: v[i] for k, v in tensors.items()}, weight)
        self._fold_in_order()
        return refused

    def _fold_in_order(self) -> None:
        while self._expected and self._expected[0] in self._waiting:
            self._fold(self._expected.pop(0))

    def _fold(self, member: int) -> None:
        tensors, weight = self._waiting.pop(member)
        for name, total in self.sums.items():
            self.sums[name] = total + double(tensors[name]) * weight
        self.weight += weight
        self._counted.add(member)

    @property
    def ready(self) -> bool:
        """Whether everybody expected, or the quorum, has put."""
        have = len(self._counted) + len(self._waiting)
        return have > 0 and (not self._expected or have >= (self.channel.quorum or have + 1))

    def close(self) -> bool:
        """Move the common values by the mean change; False, and nothing moves, where nobody weighed anything."""
        for member in sorted(self._waiting):
            self._fold(member)
        weight, self.weight = self.weight, 0.0
        self._expected, self._counted = [], set()
        if weight <= 0:
            return False
        for name, total in self.sums.items():
            xp, common = array_namespace(total), self.common[name]
            reply = self._encoded(name, xp.astype(total / weight, common.dtype))
            self.common[name] = common + reply
            self.sums[name] = total * 0
        self.version += 1
        return True

    def _encoded(self, name: str, change: Array) -> Array:
        encoding = self.channel.tensors[name].down
        if name not in self.errors:
            return encoding.quantise(change)
        wanted = change + self.errors[name]
        sent = encoding.quantise(wanted)
        self.errors[name] = wanted - sent
        return sent

    def answer(self) -> Answer:
        """The common values as they are now."""
        some = next(iter(self.common.values()))
        xp = array_namespace(some)
        return Answer(dict(self.common), xp.ones((), dtype=xp.float64, device=device(some)), self.version)

    def state(self) -> dict[str, Array]:
        """Everything a restart needs; taken between rounds, when nothing waits."""
        named = {f"common.{k}": v for k, v in self.common.items()} | {f"errors.{k}": v for k, v in self.errors.items()}
        return named | {"version": np.array([self.version])}

    def load(self, state: Tensors) -> None:
        """Go on from what `state` gave."""
        self.common = {k: state[f"common.{k}"] for k in self.common}
        self.errors = {k: state[f"errors.{k}"] for k in self.errors}
        self.version = int(state["version"][0])
