"""One federation's relay, in memory: its channels, what is uploaded to them and what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from torch import Tensor
from torch.func import vmap

from consilience.channels import Answer, AnyChannel, EntryPool, MovingMean, StandingMean, Tensors, build_channel
from consilience.wire import schema


class Federation:
    """Learners of one federation meet here. Everything is keyed by the federation's own seed."""

    def __init__(
        self,
        seed: int,
        channels: Mapping[str, schema.Channel],
        learners: int,
        starts: Mapping[str, Tensors],
        like: Tensor,
    ) -> None:
        self.seed = seed
        self.channels: dict[str, AnyChannel] = {
            name: build_channel(channel, learners, starts.get(name, {}), like) for name, channel in channels.items()
        }

    def expect(self, name: str, members: np.ndarray) -> None:
        """Set which members will upload before the next aggregation."""
        channel = self.channels[name]
        if isinstance(channel, MovingMean):
            channel.expect(members)

    def upload(
        self, name: str, members: np.ndarray, tensors: Tensors, weights: Tensor, versions: np.ndarray, now: int
    ) -> list[int]:
        """Take contributions; returns the members whose contribution was refused as too stale."""
        channel = self.channels[name]
        if isinstance(channel, MovingMean):
            return channel.upload(members, tensors, weights, versions)
        if isinstance(channel, StandingMean):
            channel.upload(members, tensors, weights, now)
        else:
            channel.upload(members, tensors, weights, replace=True)
        return []

    def aggregate(self, names: Iterable[str]) -> None:
        """Aggregate moving means: their common values move."""
        for name in names:
            channel = self.channels[name]
            if isinstance(channel, MovingMean):
                channel.aggregate()

    def version(self, name: str) -> int:
        """How often a moving mean has moved."""
        channel = self.channels[name]
        return channel.version if isinstance(channel, MovingMean) else 0

    def answers(self, name: str, readers: np.ndarray, *when: int, draw: int = 0) -> tuple[Answer, np.ndarray]:
        """Answers as the wire shows them, and which of them each reader gets: many may share one.

        draw: how many entries each reader takes out of a pool; 0 leaves it to the channel.
        """
        channel = self.channels[name]
        if isinstance(channel, MovingMean):
            return channel.answer().for_one(), np.zeros_like(readers)
        if isinstance(channel, EntryPool) and channel.same_for_all_readers(draw or channel.channel.draw):
            return _as_sent(channel.answer(readers[:1], self.seed, *when, draw=draw), channel.channel), 0 * readers
        if isinstance(channel, EntryPool):
            each = channel.answer(readers, self.seed, *when, draw=draw)
        elif channel.channel.scope == "oneself":
            each = channel.own_contributions(readers)
        else:
            return _as_sent(channel.answer().for_one(), channel.channel), np.zeros_like(readers)
        return _as_sent(each, channel.channel), np.arange(len(readers))

    def state(self) -> dict[str, Tensor]:
        """Everything a restart needs."""
        return {f"{name}.{k}": v for name, c in self.channels.items() for k, v in c.state().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        for name, channel in self.channels.items():
            prefix = f"{name}."
            channel.load({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)})


def _as_sent(answers: Answer, channel: schema.Channel) -> Answer:
    """What decoding gives, for each reader's answer by itself."""
    if channel.scope == "oneself":
        return answers  # nothing travels
    tensors = {
        name: vmap(encoding.quantize)(value) if (encoding := channel.encoding(name, "down")).lossy else value
        for name, value in answers.tensors.items()
    }
    return Answer(tensors, answers.count, answers.version)
