"""Answers that a member computes for itself, from the messages it holds, with the channels and in the form of a relay.

Every member that holds the same messages computes the same answers, to the bit: contributions are added in the order of
the charter, whenever they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.channels import EntryPool, StandingMean
from consilience.relay.answer_parts import entries_to_send, mean_to_send
from consilience.relay.messages import Messages, contribution_weight
from consilience.wire import schema
from consilience.wire.charter import Charter
from consilience.wire.headers import Part
from consilience.wire.signed_message import SignedMessage

LIKE = np.zeros(0, dtype=np.float32)
Contributions = Mapping[int, SignedMessage]
"""The message that counts of each member, by number."""


@dataclass(frozen=True)
class OwnAnswers:
    """Aggregates for one member, by its number."""

    charter: Charter
    messages: Messages
    number: int

    def build(
        self, channels: Sequence[str], counted: Mapping[str, Contributions], round_: int, draw: Mapping[str, int]
    ) -> tuple[dict[str, Part], bytes]:
        """The answers of some channels as a relay's body. counted: by channel. draw: how many entries of each pool."""
        parts: dict[str, Part] = {}
        tensors: dict[str, np.ndarray] = {}
        for name in (name for name in self.messages.channels if name in channels):
            channel = self.messages.channels[name]
            if isinstance(channel, schema.Pool):
                parts[name], sent = self._draw(channel, counted[name], round_, draw.get(name, channel.draw))
            else:
                assert isinstance(channel, schema.Mean)
                parts[name], sent = self._mean(channel, counted[name])
            tensors |= sent
        return parts, self.messages.codec_for("down", parts).encode(tensors)

    def _mean(self, channel: schema.Mean, contributions: Contributions) -> tuple[Part, dict[str, np.ndarray]]:
        mean = StandingMean(channel, len(self.charter.members), LIKE)
        for number, message in sorted(contributions.items()):
            part, own = self._read(channel, message)
            tensors = {k: t[None] for k, t in own.items()}
            mean.upload([number], tensors, contribution_weight(channel, tensors, part.weight))
        return mean_to_send(channel, mean.answer())

    def _draw(
        self, channel: schema.Pool, contributions: Contributions, round_: int, draw: int
    ) -> tuple[Part, dict[str, np.ndarray]]:
        pool = EntryPool(channel, len(self.charter.members), LIKE)
        for number, message in sorted(contributions.items()):
            part, own = self._read(channel, message)
            weights = own["count"] if channel.rows else np.full(part.entries or 0, part.weight or 0.0)
            pool.upload([number], {k: t[None] for k, t in own.items()}, weights[None], replace=True)
        return entries_to_send(channel, pool.answer([self.number], self.charter.seed, round_, 0, draw=draw)[0])

    def _read(self, channel: schema.Channel, message: SignedMessage) -> tuple[Part, dict[str, np.ndarray]]:
        """What a message holds of a channel; it was checked when it was received."""
        parts = self.messages.parse_header(message.header)
        codec = self.messages.codec_for("up", parts)
        named = codec.read(message.body, only=[k for k in codec.message if k.startswith(f"{channel.name}.")])
        return parts[channel.name], channel.own_tensors(named)
