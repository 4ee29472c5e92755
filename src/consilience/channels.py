"""What a relay keeps: running means and pools, and nothing about learning.

One code for the relay (NumPy) and the simulator (torch), written against the array-API standard. Members are numbers;
a put names several at once, so that one request and a whole simulated federation take the same path. Sums are kept in
float64: in float32 they drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from consilience import schema
from consilience.encodings import Array
from consilience.errors import ChannelError
from consilience.randomness import uniform

Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class Answer:
    """What comes back: the tensors, and for each row how many samples stand behind it."""

    tensors: dict[str, Array]
    count: Array
    version: int = 0


def _by_row(weight: Array, values: Array) -> Array:
    """A weight of shape (k, rows...) stretched over values of shape (k, rows..., rest...)."""
    xp = array_namespace(values)
    return xp.reshape(weight, weight.shape + (1,) * (values.ndim - weight.ndim))


def _double(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.astype(x, xp.float64)


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
        self.put_at = np.full(members, -1, dtype=np.int64)  # the round of each member's newest contribution

    def put(self, members: Sequence[int], tensors: Tensors, weights: Array, now: int = 0) -> None:
        """Take contributions (k, ...) with weights (k, *rows), replacing what those members had put."""
        who = _checked(members, self.members, self.channel.name)
        self._exchange(who, tensors, _double(weights))
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
        xp = array_namespace(weights)
        old = self.weights[who]
        for name, total in self.sums.items():
            kept = self.values[name]
            fresh, stale = _double(tensors[name]), _double(kept[who])
            self.sums[name] = total + xp.sum(_by_row(weights, fresh) * fresh - _by_row(old, stale) * stale, axis=0)
            kept[who] = tensors[name]
        self.count = self.count + xp.sum(weights - old, axis=0)
        self.weights[who] = weights

    def answer(self) -> Answer:
        """The mean over everybody; rows nobody has are zeros with count 0."""
        tensors = {}
        for name, total in self.sums.items():
            xp = array_namespace(total)
            count = xp.reshape(self.count, self.count.shape + (1,) * (total.ndim - self.count.ndim))
            mean = total / xp.where(count > 0, count, xp.ones_like(count))
            tensors[name] = xp.astype(xp.where(count > 0, mean, xp.zeros_like(mean)), self.values[name].dtype)
        return Answer(tensors, self.count)

    def own(self, members: Sequence[int]) -> list[Answer]:
        """What each member alone has put: the answer under the scope "oneself"."""
        return [Answer({k: v[m] for k, v in self.values.items()}, self.weights[m]) for m in members]

    def state(self) -> dict[str, Array]:
        """Everything a restart needs."""
        named = {f"values.{k}": v for k, v in self.values.items()} | {f"sums.{k}": v for k, v in self.sums.items()}
        return named | {"weights": self.weights, "count": self.count, "put_at": self.put_at}

    def load(self, state: Tensors) -> None:
        """Go on from what `state` gave."""
        self.values = {k: state[f"values.{k}"] for k in self.values}
        self.sums = {k: state[f"sums.{k}"] for k in self.sums}
        self.weights, self.count = state["weights"], state["count"]
        self.put_at = np.array(state["put_at"], dtype=np.int64)


class MovingMean:
    """Common values that move by the mean of the members' changes, each change counted once.

    Contributions since the last close are added in member order whatever order they came in, so that the same
    contributions give the same bits: a contribution waits until every expected member before it has put or the channel
    closes. The reply is quantised once, with error feedback, and added to the common values here and at every member.
    """

    def __init__(self, channel: schema.Mean, start: Tensors) -> None:
        self.channel = channel
        self.common = dict(start)
        self.sums = {k: _double(v) * 0 for k, v in self.common.items()}
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
            self.sums[name] = total + _double(tensors[name]) * weight
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

    def put(self, members: Sequence[int], tensors: Tensors, weights: Array) -> None:
        """Take up to `keep` new entries from each member: tensors (k, entries, ...), weights (k, entries, *rows)."""
        who = _checked(members, self.members, self.channel.name)
        new = weights.shape[1]
        if new > self.channel.keep:
            raise ChannelError(f"{self.channel.name}: {new} entries put at once, at most {self.channel.keep} are kept")
        for store, fresh in [(self.values[k], tensors[k]) for k in self.values] + [(self.weights, _double(weights))]:
            xp = array_namespace(store)
            store[who] = xp.concat([fresh, store[who][:, : self.channel.keep - new]], axis=1)
        self.present[who] = np.concatenate(
            [np.ones((len(who), new), dtype=bool), self.present[who][:, : self.channel.keep - new]], axis=1
        )

    def answer(self, readers: Sequence[int], *where: int) -> list[Answer]:
        """`draw` random entries for each reader, seeded by `where` (a federation's seed and the round)."""
        who = _checked(readers, self.members, self.channel.name)
        rows = self.channel.rows if self.channel.by == "row" else ()
        have = self._having(rows)  # (entries, *rows): which entries may be drawn for which row
        picks = np.stack(
            [self._picks(have[(slice(None), *row)], who, row, where) for row in np.ndindex(*rows)], axis=-1
        ).reshape(len(who), self.channel.draw, *rows)  # entry numbers, -1 for none
        return [self._gather(p) for p in picks]

    def _having(self, rows: tuple[int, ...]) -> np.ndarray:
        present = self.present.reshape(-1)
        if not rows:
            return present
        weights = np.asarray(self.weights.tolist() if not isinstance(self.weights, np.ndarray) else self.weights)
        return present.reshape(-1, *(1,) * len(rows)) & (weights.reshape(-1, *rows) > 0)

    def _picks(self, have: np.ndarray, who: np.ndarray, row: tuple[int, ...], where: tuple[int, ...]) -> np.ndarray:
        """Entry numbers (readers, draw), without repetition where there are enough."""
        entries = np.flatnonzero(have)
        owners = entries // self.channel.keep
        if self.channel.scope == "oneself":
            return np.stack([_cycle(entries[owners == reader], self.channel.draw) for reader in who])
        draws = np.arange(self.channel.draw)
        chance = uniform(f"pool {self.channel.name}", *where, *row, who[:, None], draws[None, :])  # (readers, draw)
        if self.channel.include_self:
            return _distinct(chance, np.broadcast_to(entries, (len(who), len(entries))))
        return np.stack([_distinct(chance[i : i + 1], entries[owners != r][None])[0] for i, r in enumerate(who)])

    def _gather(self, picks: np.ndarray) -> Answer:
        """The entries picked, (draw, ...): whole ones, or row by row; where nothing was there, zeros with count 0."""
        index: tuple[Any, ...] = (np.maximum(picks, 0),)
        if picks.ndim > 1:
            index += tuple(np.arange(n).reshape((-1,) + (1,) * (picks.ndim - 2 - i)) for i, n in enumerate(picks.shape[1:]))
        taken = self.weights.reshape((-1, *self.channel.rows))[index]
        xp = array_namespace(taken)
        found = xp.asarray(picks >= 0, device=device(taken))
        found = xp.reshape(found, tuple(found.shape) + (1,) * (taken.ndim - found.ndim))
        count = xp.where(found, taken, xp.zeros_like(taken))
        tensors = {}
        for name, store in self.values.items():
            value = store.reshape((-1, *store.shape[2:]))[index]
            tensors[name] = xp.where(_by_row(count, value) > 0, value, xp.zeros_like(value))
        return Answer(tensors, count)

    def state(self) -> dict[str, Array]:
        """Everything a restart needs."""
        named = {f"values.{k}": v for k, v in self.values.items()}
        return named | {"weights": self.weights, "present": self.present.astype(np.uint8)}

    def load(self, state: Tensors) -> None:
        """Go on from what `state` gave."""
        self.values = {k: state[f"values.{k}"] for k in self.values}
        self.weights = state["weights"]
        self.present = np.array(state["present"], dtype=bool)


def _cycle(entries: np.ndarray, draw: int) -> np.ndarray:
    if not len(entries):
        return np.full(draw, -1)
    return entries[np.arange(draw) % len(entries)]


def _distinct(chance: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Floyd's sampling without repetition, for many readers at once: entries (readers, n) -> (readers, draw)."""
    readers, draw = chance.shape
    n = entries.shape[1]
    if n <= draw:
        return np.stack([_cycle(e, draw) for e in entries]) if readers else np.zeros((0, draw), dtype=np.int64)
    picked = np.full((readers, draw), -1, dtype=np.int64)
    for j in range(draw):
        top = n - draw + j
        guess = (chance[:, j] * (top + 1)).astype(np.int64)
        taken = (picked[:, :j] == guess[:, None]).any(axis=1)
        picked[:, j] = np.where(taken, top, guess)
    return np.take_along_axis(entries, picked, axis=1)


def _checked(members: Sequence[int], count: int, channel: str) -> np.ndarray:
    who = np.asarray(members, dtype=np.int64)
    if who.size and (who.min() < 0 or who.max() >= count):
        raise ChannelError(f"{channel}: members {who.min()} to {who.max()} named, the channel has 0 to {count - 1}")
    return who
