"""A moving mean: common values that move by the mean of the members' changes at each aggregation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from consilience.channels.base import Answer, MemberNumbers, Tensors, add_in_order, as_float64, check_members
from consilience.channels.robust import aggregate, clip_factors, norm_limit, norms_of_changes
from consilience.errors import ChannelError
from consilience.randomness import coin_flips
from consilience.wire import schema
from consilience.wire.encodings import Array, is_vote
from consilience.wire.robustness import Robustness

_STALENESS_POWER = 0.75  # docs/architecture.md: why neither 1/2, as for slow members, nor 1


class _Change(NamedTuple):
    """A contribution: its values, (size,), its weight as uploaded, and what is left of it after its staleness."""

    values: Array
    weight: float
    counted: float


class MovingMean:
    """Common values that move by the mean of the members' changes, each change counted once.

    A change that was made from an older version counts less, and the mean is still divided by the whole weight: where
    all changes are old the common values move less far, since each change was made without knowing of the others, and a
    member that was out of reach meanwhile has trained for longer.

    Contributions since the last aggregation are added in member order whatever order they came in, so that the same
    contributions give the same bits: a contribution waits until every expected member before it has uploaded, or until
    the aggregation. The reply is quantized once, with error feedback, and added to the common values here and at every
    member. A trimmed mean, a median and a limit relative to the median norm need all contributions, which then wait for
    the aggregation.
    """

    def __init__(self, channel: schema.Mean, members: int, start: Tensors) -> None:
        if set(start) != set(channel.tensors):
            raise ChannelError(
                f"{channel.name}: start values for {sorted(start)} given; a moving mean needs them for each of its "
                f"tensors, {sorted(channel.tensors)}"
            )
        self.channel, self.members = channel, members
        self.common = dict(start)
        self._total = as_float64(self._flat({k: v[None] for k, v in self.common.items()})[0]) * 0
        self.residuals = {k: v * 0 for k, v in self.common.items() if channel.tensors[k].down.feedback}
        self.reply: dict[str, Array] = {}  # by how much the common values moved at the last aggregation
        self.version, self.weight, self.counted = 0, 0.0, 0.0
        self.is_vote = all(is_vote(tensor.up) for tensor in channel.tensors.values())
        """Whether contributions are votes: the weight of each is 1 or 0, whatever its staleness."""
        self._waiting: dict[int, _Change] = {}
        self._expected: list[int] = []
        self._added: set[int] = set()
        self._held: dict[int, _Change] = {}  # added only at the aggregation, when all are there
        self._limit: float | None = None if self.robustness.needs_all else self.robustness.clip_norm

    def expect(self, members: MemberNumbers) -> None:
        """Set which members will upload before the next aggregation."""
        who = check_members(members, self.members, self.channel.name)
        self._expected = [m for m in sorted(who.tolist()) if m not in self._added]
        self._add_waiting_in_order()

    @property
    def robustness(self) -> Robustness:
        """How the mean resists bad contributions."""
        return self.channel.robustness

    @property
    def limit_is_relative(self) -> bool:
        """Whether the mean is of changes whose largest norm depends on the norms of the others."""
        return self.robustness.aggregation == "mean" and self.robustness.needs_all

    def norm(self, tensors: Tensors) -> float:
        """The norm of one contribution, (1, ...)."""
        return float(norms_of_changes(self._flat(tensors))[0])

    def know_norms(self, norms: Sequence[float]) -> None:
        """Set the norms of all contributions that will count, where they are known before: none need then wait."""
        found = np.array(norms)[:, None]
        self._limit = float(norm_limit(self.robustness, found, np.ones_like(found))[0])

    def upload(self, members: MemberNumbers, tensors: Tensors, weights: Array, versions: MemberNumbers) -> list[int]:
        """Add changes (k, ...) made from the common values at `versions`; returns members refused as too stale."""
        who = check_members(members, self.members, self.channel.name).tolist()
        uploads = zip(who, map(float, weights.tolist()), map(int, versions), strict=True)
        counts = [self._weights(*upload) for upload in uploads]
        for member, count, change in zip(who, counts, self._flat(tensors), strict=True):
            if count is not None:
                self._waiting[member] = _Change(change, *count)
        self._add_waiting_in_order()
        return [member for member, count in zip(who, counts, strict=True) if count is None]

    def _weights(self, member: int, weight: float, version: int) -> tuple[float, float] | None:
        """A contribution's weight, and by its staleness; None if it is too stale. Checked before any is added."""
        if member in self._added or member in self._waiting:
            raise ChannelError(
                f"{self.channel.name}: member {member} has uploaded since the last aggregation; wait for the next one"
            )
        if not 0 <= weight < math.inf:
            raise ChannelError(
                f"{self.channel.name}: member {member} has weight {weight}; it must be finite, 0 or more"
            )
        weight = min(weight, self.robustness.weight_cap)
        if self.is_vote and weight not in (0.0, 1.0):
            raise ChannelError(
                f"{self.channel.name}: member {member} has weight {weight}; the weight of a vote is 1 or 0"
            )
        staleness = self.version - version
        if staleness < 0:
            raise ChannelError(f"{self.channel.name}: version {version} is ahead of the channel's {self.version}")
        if staleness > self.channel.max_staleness:
            return None
        return weight, weight if self.is_vote else weight / (1.0 + staleness) ** _STALENESS_POWER

    def _add_waiting_in_order(self) -> None:
        next_members = list(takewhile(self._waiting.__contains__, self._expected))
        del self._expected[: len(next_members)]
        self._add(next_members)

    def _add(self, members: list[int]) -> None:
        if not members:
            return
        taken = {m: self._waiting.pop(m) for m in members}
        self._added |= set(members)
        for change in taken.values():  # one after the other: a sum of partial sums would round differently
            self.weight += change.weight
            self.counted += change.counted
        if self._limit is None:
            self._held |= taken
        else:
            self._add_to_total(taken)

    def _add_to_total(self, taken: Mapping[int, _Change]) -> None:
        changes, weights = [c.values for c in taken.values()], tuple(c.counted for c in taken.values())
        if self._limit is not None and self._limit < math.inf:
            norms = np.concatenate([norms_of_changes(change[None]) for change in changes])
            weights = tuple((np.array(weights) * clip_factors(norms, self._limit)).tolist())
        self._total = add_in_order(self._total, changes, weights)

    @property
    def ready(self) -> bool:
        """Whether every expected member, or the quorum, has uploaded."""
        uploaded, quorum = len(self._added) + len(self._waiting), self.channel.quorum
        complete = not self._expected and (quorum is None or bool(self._added))  # a quorum needs expected members
        return uploaded > 0 and (complete or (quorum is not None and uploaded >= quorum))

    def aggregate(self) -> bool:
        """Average the uploads, and move the common values by the mean change.

        Returns False, and moves nothing, if the weights are all 0.
        """
        self._add(sorted(self._waiting))
        weight, self.weight = self.weight, 0.0
        counted, self.counted = self.counted, 0.0
        held = {m: self._held[m] for m in sorted(self._held)}
        self._expected, self._added, self._held = [], set(), {}
        if weight <= 0:
            return False
        mean, start = self._mean(held, weight, counted), 0
        self._total = self._total * 0
        self._limit = None if self.robustness.needs_all else self.robustness.clip_norm
        for name, common in self.common.items():
            xp, stop = array_namespace(common), start + math.prod(common.shape)
            change = xp.astype(xp.reshape(mean[start:stop], common.shape), common.dtype)
            self.reply[name] = self._quantize(name, change)
            self.common[name] = common + self.reply[name]
            start = stop
        self.version += 1
        return True

    def _mean(self, held: Mapping[int, _Change], weight: float, counted: float) -> Array:
        """The mean change, or what the channel takes in its place; (size,) in float64."""
        if held and self.limit_is_relative:
            self.know_norms([float(norms_of_changes(c.values[None])[0]) for c in held.values() if c.counted > 0])
            self._add_to_total(held)
        if not held or self.limit_is_relative:
            return self._total / weight
        xp = array_namespace(self._total)
        changes = xp.stack([c.values for c in held.values()])[:, None, :]  # (members, 1, size)
        weights = xp.asarray([[c.counted] for c in held.values()], dtype=xp.float64, device=device(changes))
        factors = None
        if self.robustness.clips:
            norms = xp.asarray(norms_of_changes(changes[:, 0, :])[:, None], device=device(changes))
            factors = clip_factors(norms, norm_limit(self.robustness, norms, weights))
        return aggregate(self.robustness, changes, weights, factors)[0] * (counted / weight)

    def _flat(self, tensors: Tensors) -> Array:
        """Contributions (k, ...) concatenated to (k, size): adding one is then one sum, not one per tensor."""
        parts = [tensors[k] for k in self.common]
        xp = array_namespace(parts[0])
        return xp.concat([xp.reshape(p, (p.shape[0], math.prod(p.shape[1:]))) for p in parts], axis=1)

    def _quantize(self, name: str, change: Array) -> Array:
        encoding = self.channel.tensors[name].down
        if name not in self.residuals:
            return encoding.quantize(self._break_ties(name, change) if is_vote(encoding) else change)
        wanted = change + self.residuals[name]
        sent = encoding.quantize(wanted)
        self.residuals[name] = wanted - sent
        return sent

    def _break_ties(self, name: str, change: Array) -> Array:
        """Where the votes are equal, a coin flip decides, another one for each version."""
        tie = coin_flips(f"{self.channel.name}.{name}", self.version, change)
        return array_namespace(change).where(change == 0, tie, change)

    def answer(self) -> Answer:
        """The common values, and how often they have moved."""
        some = next(iter(self.common.values()))
        xp = array_namespace(some)
        turn = xp.full((), float(self.version), dtype=xp.float64, device=device(some))
        return Answer(dict(self.common), turn, self.version)

    def state(self) -> dict[str, Array]:
        """Everything a restart needs; to be used when no contribution waits."""
        named = {f"common.{k}": v for k, v in self.common.items()} | {
            f"errors.{k}": v for k, v in self.residuals.items()
        }
        return named | {"version": np.array([self.version])}

    def load(self, state: Tensors) -> None:
        """Continue from what `state` returned."""
        self.common = {k: state[f"common.{k}"] for k in self.common}
        self.residuals = {k: state[f"errors.{k}"] for k in self.residuals}
        self.version = int(state["version"][0])
