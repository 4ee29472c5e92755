"""One federation's relay, in memory: its channels, uploads into them, and their answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from torch import Tensor
from torch.func import vmap

from consilience.channels import (
    LAST_MOVE,
    Answer,
    AnyChannel,
    EntryPool,
    MovingMean,
    OwnMovingMean,
    Scope,
    StandingMean,
    Tensors,
    build_channel,
)
from consilience.exchanges.dimensions import SHARED
from consilience.simulation.setup.partners import EVERYBODY, PartnerPlan
from consilience.simulation.setup.subspaces import SubspacePlan
from consilience.wire import schema

SimulatedChannel = AnyChannel | OwnMovingMean
_MOVED = "moved."  # before the names of tensors in what is saved


class Federation:
    """The channels of one federation. Random draws depend on the federation's own seed.

    common: the values that moving means start from, by channel. example: a tensor of the kind that channels keep.
    last_moves: moving means whose answers also have their last move. rules: whose uploads learners use; `scope` is that
    of the round, None where it is everybody's, and the round sets it before it aggregates.
    """

    def __init__(
        self,
        seed: int,
        channels: Mapping[str, schema.Channel],
        learners: int,
        common: Mapping[str, Tensors],
        example: Tensor,
        last_moves: Collection[str] = (),
        rules: PartnerPlan = EVERYBODY,
    ) -> None:
        self.seed, self.rules = seed, rules
        self.scope: Scope | None = None
        self.subspace: SubspacePlan | None = None
        self.shared = example.new_zeros(0)  # (width,) 1 where a feature dimension is shared; empty without a subspace
        self.channels: dict[str, SimulatedChannel] = {
            name: OwnMovingMean(channel, learners, common[name])
            if isinstance(channel, schema.Mean) and channel.moving and rules.scoped
            else build_channel(channel, learners, common.get(name, {}), example)
            for name, channel in channels.items()
        }
        self._last_moves = frozenset(last_moves)

    def use_subspace(self, plan: SubspacePlan | None) -> None:
        """Share other feature dimensions in every round; before the first one none."""
        self.subspace, self.shared = plan, self.shared.new_zeros(plan.width if plan is not None else 0)

    def share_only(self, shared: np.ndarray, now: int) -> None:
        """Share these dimensions, (width,), from round `now` on; earlier uploads, of other dimensions, are removed."""
        self.shared = self.shared.new_tensor(shared)
        for name in self.subspace.channels if self.subspace is not None else ():
            channel = self.channels[name]
            if isinstance(channel, StandingMean):
                channel.expire(now)
            elif isinstance(channel, EntryPool):
                channel.clear()

    def only_shared(self, name: str, tensors: Tensors) -> Tensors:
        """What travels of tensors whose last dimension is the features': 0 in dimensions that are not shared."""
        for shared in self._shared_in(name).values():
            return {key: tensor * shared.to(tensor.device) for key, tensor in tensors.items()}
        return tensors

    def dimensions(self, name: str, width: int) -> np.ndarray | slice:
        """The feature dimensions that uploads of this width to a channel have: the first, or those of the round."""
        for shared in self._shared_in(name).values():
            return np.flatnonzero(shared.numpy(force=True))
        return slice(width)

    def expect(self, name: str, members: np.ndarray) -> None:
        """Tell a moving mean who will upload."""
        channel = self.channels[name]
        if isinstance(channel, MovingMean):
            channel.expect(members)

    def upload(
        self, name: str, members: np.ndarray, tensors: Tensors, weights: Tensor, versions: np.ndarray, now: int
    ) -> list[int]:
        """Put contributions into a channel; return the members whose uploads are refused as too stale."""
        channel = self.channels[name]
        if isinstance(channel, MovingMean):
            return channel.upload(members, tensors, weights, versions)
        if isinstance(channel, StandingMean | OwnMovingMean):
            channel.upload(members, tensors, weights, now)
        else:
            channel.upload(members, tensors, weights, replace=True)
        return []

    def aggregate(self, names: Iterable[str]) -> None:
        """Aggregate the uploads of these channels: moving means move; other channels do so with every upload."""
        for name in names:
            channel = self.channels[name]
            if isinstance(channel, MovingMean):
                channel.aggregate()
            elif isinstance(channel, OwnMovingMean):
                channel.aggregate(self.scope)

    def version(self, name: str) -> int:
        """How often a moving mean has moved; 0 for other channels."""
        channel = self.channels[name]
        return channel.version if isinstance(channel, MovingMean | OwnMovingMean) else 0

    def answers(
        self, name: str, readers: np.ndarray, *when: int, draw: int = 0, losses: np.ndarray | None = None
    ) -> tuple[Answer, np.ndarray]:
        """`_answers`, with the dimensions that they have where others are shared in every round.

        losses: (readers, entries) of a pool, of which readers get those with the smallest; by default random ones.
        """
        if losses is None:
            found, which = self._answers(name, readers, *when, draw=draw)
        else:
            found = self._own_answers(self.channels[name], readers, *when, draw=draw, losses=losses)
            which = _each(readers)
        shared = {key: tensor.expand(len(found), -1) for key, tensor in self._shared_in(name).items()}
        return Answer({**found.tensors, **shared}, found.count, found.version), which

    def _answers(self, name: str, readers: np.ndarray, *when: int, draw: int) -> tuple[Answer, np.ndarray]:
        """Answers as learners decode them, and which of them each reader gets: many may share one.

        when: numbers that random draws depend on. draw: how many entries of a pool each reader gets; 0 leaves it to the
        channel.
        """
        channel = self.channels[name]
        if isinstance(channel, MovingMean):
            answer = channel.answer()
            shown = Answer({**answer.tensors, **self._last_move(channel, LAST_MOVE)}, answer.count, answer.version)
            return shown.for_one(), np.zeros_like(readers)
        if self._differs(channel):
            return self._own_answers(channel, readers, *when, draw=draw), _each(readers)
        assert not isinstance(channel, OwnMovingMean)
        if isinstance(channel, EntryPool) and channel.same_for_all_readers(draw or channel.channel.draw):
            return as_decoded(channel.answer(readers[:1], self.seed, *when, draw=draw), channel.channel), 0 * readers
        if isinstance(channel, EntryPool):
            each = channel.answer(readers, self.seed, *when, draw=draw)
        elif channel.channel.scope == "oneself":
            each = channel.own_contributions(readers)
        else:
            return as_decoded(channel.answer().for_one(), channel.channel), np.zeros_like(readers)
        return as_decoded(each, channel.channel), _each(readers)

    def _differs(self, channel: SimulatedChannel) -> bool:
        """Whether readers get answers of their own because of whose uploads they use."""
        if isinstance(channel, OwnMovingMean):
            return True
        within = self.scope is not None or (isinstance(channel, EntryPool) and self.rules.choose == "relevant")
        return within and channel.channel.scope != "oneself"

    def _own_answers(
        self, channel: SimulatedChannel, readers: np.ndarray, *when: int, draw: int, losses: np.ndarray | None = None
    ) -> Answer:
        """An answer for each reader, within its scope; between neighbors no answer is encoded once more."""
        if isinstance(channel, OwnMovingMean):
            return channel.answer(readers)
        scope = None if self.scope is None else self.scope.rows(readers)
        if isinstance(channel, EntryPool):
            allowed = None if scope is None else scope.entries
            nearest = self.rules.choose == "relevant"
            answers = channel.answer(
                readers, self.seed, *when, draw=draw, allowed=allowed, nearest=nearest, losses=losses
            )
        else:
            assert isinstance(channel, StandingMean) and scope is not None
            answers = channel.answer_within(scope.weights)
        return answers if scope is not None and scope.gossip else as_decoded(answers, channel.channel)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything that resuming needs, by channel and name."""
        return {
            name: dict(channel.state()) | self._last_move(channel, _MOVED) | self._shared_in(name)
            for name, channel in self.channels.items()
        }

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from what `state` gave."""
        for name, channel in self.channels.items():
            channel.load(state[name])
            self.shared = state[name].get(SHARED, self.shared)
            if isinstance(channel, MovingMean) and name in self._last_moves:
                channel.reply = {k: state[name][f"{_MOVED}{k}"] for k in channel.common}

    def _shared_in(self, name: str) -> dict[str, Tensor]:
        """The shared dimensions of a channel, where they change with the rounds."""
        return {SHARED: self.shared} if self.subspace is not None and name in self.subspace.channels else {}

    def _last_move(self, channel: SimulatedChannel, prefix: str) -> dict[str, Tensor]:
        """The last move of a moving mean by name, where learners need it; zeros before the first."""
        if not isinstance(channel, MovingMean) or channel.channel.name not in self._last_moves:
            return {}
        moved = channel.reply or {k: v * 0 for k, v in channel.common.items()}
        return {f"{prefix}{k}": moved[k] for k in channel.common}


def _each(readers: np.ndarray) -> np.ndarray:
    """Which answer each reader gets, where every reader has one of its own."""
    return np.arange(len(readers))


def as_decoded(answers: Answer, channel: schema.Channel) -> Answer:
    """Answers as each reader decodes them."""
    if channel.scope == "oneself":
        return answers  # nothing travels
    tensors = {
        name: vmap(encoding.quantize)(value) if (encoding := channel.encoding(name, "down")).lossy else value
        for name, value in answers.tensors.items()
    }
    return Answer(tensors, answers.count, answers.version)
