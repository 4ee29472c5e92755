"""The relay's answers equal the simulator's, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from consilience.simulation.federation import Federation
from consilience.wire import codec, schema
from consilience.wire.byte_count import ByteCount
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8
from consilience.wire.headers import ANSWER_HEADER, UPLOAD_HEADER, Part, format_parts, parse_parts
from consilience.wire.robustness import Robustness
from tests.local_relay import (
    Arrays,
    Channels,
    create_federation,
    message,
    running,
)

ENCODINGS = st.sampled_from([FLOAT32, FLOAT16, INT8, INT4, BIT])
ROBUSTNESS = st.sampled_from(
    [
        Robustness(),
        Robustness("trimmed", 0.2),
        Robustness("median"),
        Robustness(clip_norm=1.0, weight_cap=3.0),
        Robustness(clip_ratio=1.2),
        Robustness("trimmed", 0.3, clip_norm=2.0, clip_ratio=1.1, weight_cap=2.0),
    ]
)
CLASSES = 3


@st.composite
def any_channel(draw: st.DrawFn, name: str) -> schema.Channel:
    kind = draw(st.sampled_from(["standing", "pool", "moving"]))
    rows = () if kind == "moving" else draw(st.sampled_from([(), (CLASSES,)]))
    shape = (*rows, *draw(st.sampled_from([(), (2,), (2, 3)])))
    names = draw(st.sampled_from([["mean"], ["a", "b.c"]]))
    tensors = {key: schema.Tensor(shape, draw(ENCODINGS), draw(ENCODINGS)) for key in names}
    if kind != "pool":
        return schema.Mean(name, tensors, rows, moving=kind == "moving", robustness=draw(ROBUSTNESS))
    keep, many = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    by = draw(st.sampled_from(["member", "row"])) if rows else "member"
    alone = draw(st.booleans())
    return schema.Pool(name, tensors, rows, keep=keep, draw=many, by=by, include_self=alone)  # type: ignore[arg-type]


@st.composite
def any_channels(draw: st.DrawFn) -> Channels:
    return {name: draw(any_channel(name)) for name in ["first", "second", "third"][: draw(st.integers(1, 3))]}


def contribution(channel: schema.Channel, random: np.random.Generator) -> Arrays:
    """A contribution to upload; for a pool, the maximum number of entries."""
    tensors = {}
    for key, field in channel.message("up").items():
        counts = field.encoding.name == "int32"
        drawn = random.integers(0, 4, field.shape) if counts else random.normal(size=field.shape)
        tensors[key] = np.asarray(drawn, dtype=np.float32)
    return tensors


def part_of(channel: schema.Channel, version: int, weight: float) -> Part:
    entries = channel.keep if isinstance(channel, schema.Pool) else None
    moving = isinstance(channel, schema.Mean) and channel.moving
    return Part(entries, version if moving else None, None if channel.rows else weight)


def robust_channels(robustness: Robustness) -> Channels:
    """A standing mean by class, one with a weight each, and moving means of exact and of one-bit uploads."""
    by_class = {"mean": schema.Tensor((CLASSES, 2), FLOAT16, INT8)}
    moved = {"a": schema.Tensor((2, 3), BIT, INT4), "b": schema.Tensor((5,))}
    return {
        "first": schema.Mean("first", by_class, (CLASSES,), robustness=robustness),
        "second": schema.Mean("second", {"mean": schema.Tensor((4,))}, robustness=robustness),
        "third": schema.Mean("third", moved, moving=True, robustness=robustness),
    }


@example(robust_channels(Robustness("trimmed", 0.2)), 4, 2, 0)
@example(robust_channels(Robustness("trimmed", 0.3, clip_ratio=1.1, weight_cap=2.0)), 4, 2, 1)
@example(robust_channels(Robustness("median")), 4, 2, 2)
@example(robust_channels(Robustness(clip_ratio=1.1)), 4, 2, 3)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(any_channels(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000))
def test_relay_gives_the_same_answers_as_the_simulator(
    channels: Channels, members: int, rounds: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    moving = {n: c for n, c in channels.items() if isinstance(c, schema.Mean) and c.moving}
    starts = {
        n: {k: random.normal(size=t.shape).astype(np.float32) for k, t in c.tensors.items()} for n, c in moving.items()
    }
    simulated = Federation(
        0, channels, members, {n: {k: torch.tensor(v) for k, v in s.items()} for n, s in starts.items()}, torch.zeros(0)
    )
    traffic = ByteCount(channels)
    common = {f"{n}.{k}": v for n, s in starts.items() for k, v in s.items()}
    with (
        tempfile.TemporaryDirectory() as folder,
        running(create_federation(Path(folder), channels, starts, members)) as relay,
    ):
        for round_ in range(1, rounds + 1):
            for name in moving:
                simulated.expect(name, np.arange(members))
            for i in range(members):
                weight = float(random.integers(1, 9))
                said = {n: part_of(c, round_ - 1, weight) for n, c in channels.items()}
                tensors = {k: v for c in channels.values() for k, v in contribution(c, random).items()}
                body = codec.encode(message(channels, said, "up"), tensors)
                assert len(body) == traffic.up(channels)
                response = relay.ask(
                    i, f"/v1/rounds/{round_}", "PUT", {UPLOAD_HEADER: format_parts(said)}, content=body
                )
                assert response.json()["accepted"] == list(channels)
                sent = codec.decode(message(channels, said, "up"), body)
                for name, channel in channels.items():
                    simulate_upload(simulated, name, channel, i, sent, weight, round_)
            simulated.aggregate(moving)
            for i in range(members):
                have = "".join(f"&have={name}:{round_ - 1}" for name in moving)
                response = relay.ask(i, f"/v1/answers?round={round_}{have}")
                assert len(response.content) == traffic.down(channels)
                parts = parse_parts(response.headers[ANSWER_HEADER])
                got = codec.decode(message(channels, parts, "down"), response.content)
                for name, channel in channels.items():
                    if name in moving and i:
                        continue
                    if name in moving:
                        mine = {f"{name}.{k}" for k in channel.tensors}
                        common |= {k: common[k] + got[k] for k in mine}
                        got |= {k: common[k] for k in mine}
                    compare(simulated, name, channel, i, round_, got)
        parts, got = relay.answers(0)
        assert all(got[key].tobytes() == held.tobytes() for key, held in common.items())  # bit for bit


def simulate_upload(
    simulated: Federation, name: str, channel: schema.Channel, i: int, sent: Arrays, weight: float, round_: int
) -> None:
    tensors = {key: torch.tensor(sent[f"{name}.{key}"])[None] for key in channel.tensors}
    lead = (1, channel.keep) if isinstance(channel, schema.Pool) else (1,)
    weights = torch.tensor(sent[f"{name}.count"])[None] if channel.rows else torch.full(lead, weight)
    simulated.upload(name, np.array([i]), tensors, weights, np.array([round_ - 1]), round_)


def compare(simulated: Federation, name: str, channel: schema.Channel, reader: int, round_: int, got: Arrays) -> None:
    answers, which = simulated.answers(name, np.array([reader]), round_, 0)
    answer = answers[int(which[0])]
    for key, expected in answer.tensors.items():
        values = got[f"{name}.{key}"]
        if isinstance(channel, schema.Mean) and (channel.moving or channel.robustness.needs_all):
            assert values.tobytes() == expected.numpy().tobytes(), key
        np.testing.assert_allclose(values, expected.numpy(), rtol=1e-6, atol=1e-6)
    if channel.rows:
        assert np.array_equal(got[f"{name}.count"], answer.count.numpy())
