"""What a member computes for itself is what the simulator computes, to the bit, in whatever order messages came."""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consilience.peer.direct.link import DirectLink
from consilience.simulation.federation import Federation
from consilience.wire import schema
from consilience.wire.charter import message_of
from consilience.wire.codec import Codec
from consilience.wire.headers import Part
from tests.direct_tools import CLASSES, NAMES, secret_of, signed, small_charter
from tests.local_relay import Channels
from tests.relay.test_same_as_simulator import any_channel, compare, simulate_upload


@st.composite
def standing_channels(draw: st.DrawFn) -> Channels:
    found = {name: draw(any_channel(name)) for name in ("first", "second")}
    return {name: channel for name, channel in found.items() if not channel.moves}


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(standing_channels(), st.integers(1, 3), st.permutations(NAMES), st.integers(0, 1000))
def test_members_compute_the_simulator_s_answers(channels: Channels, rounds: int, order: list[str], seed: int) -> None:
    if not channels:
        return
    charter = small_charter(channels=channels)
    links = {
        name: DirectLink(charter, name, Ed25519PrivateKey.from_private_bytes(secret_of(name)), None) for name in NAMES
    }
    simulated, random = Federation(charter.seed, channels, len(NAMES), {}, torch.zeros(0)), np.random.default_rng(seed)
    for round_ in range(1, rounds + 1):
        messages = {}
        for number, name in enumerate(NAMES):
            weight = float(random.integers(1, 9))
            parts = {n: _part(c, weight) for n, c in channels.items()}
            message = message_of(channels, "up", parts)
            tensors = {k: _values(field, random) for k, field in message.items()}
            body = Codec(message).encode(tensors)
            messages[name] = signed(charter, name, round_, parts=parts, body=body)
            sent = Codec(message).decode(bytearray(body))
            for channel_name, channel in channels.items():
                simulate_upload(simulated, channel_name, channel, number, sent, weight, round_)
        for link in links.values():
            for name in order:
                assert link.mailbox.accept(messages[name].data)
        for number, link in enumerate(links.values()):
            answer = link.answers(round_, list(channels), {}, {}, "", 1.0)
            assert answer is not None
            got = Codec(message_of(channels, "down", answer.parts)).decode(bytearray(answer.body))
            for channel_name, channel in channels.items():
                compare(simulated, channel_name, channel, number, round_, got)
            assert link.answers(round_, list(channels), {}, {}, answer.etag, 1.0) is None


def _part(channel: schema.Channel, weight: float) -> Part:
    entries = channel.keep if isinstance(channel, schema.Pool) else None
    return Part(entries=entries, weight=None if channel.rows else weight)


def _values(field: schema.Field, random: np.random.Generator) -> np.ndarray:
    drawn = random.integers(0, 4, field.shape) if field.encoding.name == "int32" else random.normal(size=field.shape)
    return np.asarray(drawn, dtype=np.float32)


def test_a_member_that_vanished_counts_until_it_expires() -> None:
    charter = small_charter(expire=2)
    link = DirectLink(charter, "north", Ed25519PrivateKey.from_private_bytes(secret_of("north")), None)
    link.mailbox.accept(signed(charter, "south", 1).data)
    counts = []
    for round_ in range(1, 6):
        link.mailbox.accept(signed(charter, "north", round_).data)
        assert len(link.mailbox.newest_with("prototypes", round_)) == 2
        counts.append(sorted(link.counted("prototypes", round_)))
    assert counts == [["north", "south"]] * 3 + [["north"]] * 2
    link.mailbox.accept(signed(charter, "south", 2).data)  # it is back
    assert sorted(link.counted("prototypes", 5)) == ["north", "south"]


def test_a_mean_by_hand() -> None:
    """Class 0: 2 samples of 0.5 and 6 of 1.0 are 0.875; a class that nobody has is 0 with count 0."""
    channel = schema.Mean("prototypes", {"mean": schema.Tensor((CLASSES, 1))}, (CLASSES,))
    charter = small_charter(channels={"prototypes": channel})
    link = DirectLink(charter, "north", Ed25519PrivateKey.from_private_bytes(secret_of("north")), None)
    message = channel.message("up")
    for name, value, count in (("north", 0.5, 2), ("south", 1.0, 6)):
        tensors = {"prototypes.mean": np.array([[value], [-value], [0.0]]), "prototypes.count": np.array([count, 1, 0])}
        link.mailbox.accept(
            signed(charter, name, 0, parts={"prototypes": Part()}, body=Codec(message).encode(tensors)).data
        )
    answer = link.answers(0, ["prototypes"], {}, {}, "", 1.0)
    assert answer is not None
    got = Codec(channel.message("down")).decode(bytearray(answer.body))
    assert got["prototypes.mean"].ravel().tolist() == [0.875, -0.75, 0.0]
    assert got["prototypes.count"].tolist() == [8, 2, 0]
