"""A federation's charter: written and read, refused by name, and bound to its start values."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.errors import ConfigurationError
from consilience.wire import codec, schema
from consilience.wire.charter import (
    Charter,
    build_charter,
    decode_start_values,
    encode_start_values,
    read_charter,
    start_values_file,
)
from consilience.wire.common_values import common_values_message, values_fingerprint
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8, Bit
from consilience.wire.rules import Rules

CHANNELS: dict[str, schema.Channel] = {
    "prototypes": schema.Mean("prototypes", {"mean": schema.Tensor((3, 4), FLOAT16, INT8, -1, 1)}, rows=(3,)),
    "votes": schema.Mean("votes", {"sign": schema.Tensor((5,), Bit(unit=0.5), FLOAT32)}),
    "seen": schema.Pool("seen", {"a": schema.Tensor((3, 2))}, rows=(3,), keep=4, draw=2, by="row", include_self=False),
    "weights": schema.Mean(
        "weights", {"layer.1": schema.Tensor((2, 2), BIT, BIT), "scale": schema.Tensor(())}, moving=True, quorum=3
    ),
}
STARTS = {"weights": {"layer.1": np.arange(4, dtype=np.float32).reshape(2, 2), "scale": np.array(0.5)}}
METHOD = {"name": "some", "weight": 0.5, "most": math.inf, "parts": ["a", "b"], "more": {"deep": True}}


def charter(**changes: Any) -> Charter:
    return build_charter(
        "digits", METHOD, 3, CHANNELS, STARTS, seed=7, rules=Rules(min_contributions=1, deadline=math.inf), **changes
    )


# --- round trip


def test_charter_round_trips_through_toml() -> None:
    made = charter()
    again = read_charter(made.to_toml())
    assert again == made
    assert again.channels == CHANNELS
    assert again.method == METHOD
    assert again.rules == Rules(min_contributions=1, deadline=math.inf)
    assert again.to_toml() == made.to_toml()


def test_infinite_bounds_are_not_written() -> None:
    text = charter().to_toml()
    assert "low = -1.0" in text
    assert "inf" not in text.split("[channels")[1]


def test_channels_of_scope_oneself_are_not_in_the_charter() -> None:
    mine = {**CHANNELS, "own": schema.Mean("own", {"a": schema.Tensor((2,))}, scope="oneself")}
    assert list(build_charter("digits", METHOD, 3, mine, STARTS).channels) == list(CHANNELS)
    with pytest.raises(ConfigurationError, match="'some' shares nothing"):
        build_charter("digits", METHOD, 3, {"own": mine["own"]}, {})


@st.composite
def any_channel(draw: st.DrawFn, name: str) -> schema.Channel:
    encodings = st.sampled_from([FLOAT32, FLOAT16, INT8, INT4, BIT, Bit(unit=0.25)])
    rows = draw(st.sampled_from([(), (2,), (2, 3)]))
    bound = draw(st.sampled_from([math.inf, 1.0, 2.5]))
    tensors = {}
    for key in draw(st.lists(st.sampled_from(["a", "b.c", "w 1", "é"]), min_size=1, max_size=3, unique=True)):
        shape = (*rows, *draw(st.lists(st.integers(0, 4), max_size=2)))
        tensors[key] = schema.Tensor(shape, draw(encodings), draw(encodings), -bound, bound)
    kind = draw(st.sampled_from(["standing", "moving", "pool"]))
    if kind == "pool":
        by = draw(st.sampled_from(["member", "row"] if rows else ["member"]))
        numbers = {"keep": draw(st.integers(1, 1000)), "draw": draw(st.integers(1, 1000))}
        return schema.Pool(name, tensors, rows, by=by, include_self=draw(st.booleans()), **numbers)  # type: ignore[arg-type]
    if kind == "standing" or rows:
        return schema.Mean(name, tensors, rows)
    stale, quorum = draw(st.integers(0, 20)), draw(st.sampled_from([None, 1, 5]))
    return schema.Mean(name, tensors, moving=True, max_staleness=stale, quorum=quorum)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(0, 2**53))
def test_any_charter_round_trips(data: st.DataObject, seed: int) -> None:
    names = data.draw(st.lists(st.sampled_from(["a", "b-2", "0"]), min_size=1, unique=True))
    channels = {name: data.draw(any_channel(name)) for name in names}
    starts = {n: {k: np.full(t.shape, 0.5) for k, t in c.tensors.items()} for n, c in channels.items()}
    made = build_charter("any", {"name": "some"}, 2, channels, starts, seed=seed)
    again = read_charter(made.to_toml())
    assert again == made
    assert again.channels == channels
    assert again.message("up") == made.message("up")
    moving = {n for n, c in channels.items() if isinstance(c, schema.Mean) and c.moving}
    back = decode_start_values(again, encode_start_values(made, {n: starts[n] for n in moving}))
    assert back.keys() == moving
    assert all((back[n][k] == starts[n][k]).all() for n in moving for k in starts[n])


# --- refusals

GOOD = {
    "protocol": 2,
    "name": "digits",
    "classes": 3,
    "method": {"name": "some"},
    "channels": {"c": {"kind": "standing", "tensors": {"t": {"shape": [3, 2]}}}},
}


def with_(path: str, value: Any) -> str:
    """The valid charter as TOML, with one entry changed or added; None removes it."""
    content: Any = copy.deepcopy(GOOD)
    *way, last = path.split("/")
    at = content
    for step in way:
        at = at.setdefault(step, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return tomli_w.dumps(content)


def test_unchanged_charter_is_valid() -> None:
    assert read_charter(with_("seed", 3)).seed == 3


TENSOR = "channels/c/tensors/t"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("protocol", 1, "protocol is 1; this library implements 2.*create the federation again"),
        ("name", None, "name is missing"),
        ("name", "Digits", "name 'Digits': use lower-case"),
        ("name", "a" * 65, "name 'a+': use lower-case"),
        ("name", "-a", "start with a letter or digit"),
        ("name", "a/../b", "name 'a/../b'"),
        ("nam", "x", "nam is 'x'"),
        ("seed", -1, "seed is -1; it must be 0 or more"),
        ("seed", 2**60, "seed is"),
        ("classes", 1, "classes is 1; it must be 2 or more"),
        ("classes", "ten", "classes is 'ten'; it must be a whole number"),
        ("method", {"weight": 1}, "method has no name"),
        ("method/name", 3, "method has no name"),
        ("channels", {}, "channels"),
        ("channels/Upper", GOOD["channels"]["c"], "channel 'Upper'"),  # type: ignore[index]
        ("channels/a.b", GOOD["channels"]["c"], r"channel 'a\.b'"),  # type: ignore[index]
        ("rules/min_contributions", 0, "rules.min_contributions is 0; it must be 1 or more"),
        ("rules/deadline", 0, "rules.deadline is 0; it must be more than 0"),
        ("rules/deadline", math.nan, "rules.deadline is nan"),
        ("rules/expire", -1, "rules.expire is -1"),
        ("rules/samples", 2**31, "rules.samples is 2147483648; it must be less than"),
        ("rules/samples", 0, "rules.samples is 0"),
        ("rules/unknown", 1, "rules.unknown is 1"),
        ("channels/c/kind", "median", "channels.c.kind is 'median'; it must be 'standing', 'moving' or 'pool'"),
        ("channels/c/kind", "moving", "channel 'c' is a moving mean; it needs 'start'"),
        ("channels/c/rows", [2], r"channel 'c' has weights of rows \(2,\), but 't' has shape \(3, 2\)"),
        ("channels/c/rows", [3, 2, 1], "a shape starts with the rows"),
        ("channels/c/rows", [-3], "each 1 or more"),
        ("channels/c/keep", 0, "channels.c.keep is 0; it must be 1 or more"),
        ("channels/c/draw", 1001, "channels.c.draw is 1001; it must be 1000 or less"),
        ("channels/c/by", "class", "channels.c.by is 'class'"),
        ("channels/c/max_staleness", -1, "channels.c.max_staleness is -1"),
        ("channels/c/quorum", 0, "channels.c.quorum is 0"),
        ("channels/c/tensors", {}, "channels.c.tensors"),
        (f"{TENSOR}/shape", [-1, 2], r"shape \(-1, 2\) is not allowed"),
        (f"{TENSOR}/shape", [2**20, 2**20], "at most 2\\^31 values"),
        (f"{TENSOR}/shape", "wide", "channels.c.tensors.t.shape is 'wide'; it must be a list"),
        (f"{TENSOR}/up", "int32", "encoding 'int32' is unknown; known: float32"),
        (f"{TENSOR}/up", "float64", "encoding 'float64'"),
        (f"{TENSOR}/down", "bit(0)", r"encoding 'bit\(0\)'"),
        (f"{TENSOR}/down", "bit(-1)", r"encoding 'bit\(-1\)'"),
        (f"{TENSOR}/down", "bit(nan)", r"encoding 'bit\(nan\)'"),
        (f"{TENSOR}/down", "bit(1e300)", r"encoding 'bit\(1e300\)'"),
        (f"{TENSOR}/down", "bit(1e-60)", r"encoding 'bit\(1e-60\)'"),
        (f"{TENSOR}/down", "bit(x)", r"encoding 'bit\(x\)'"),
        (f"{TENSOR}/low", math.nan, "bounds nan to inf"),
        (f"{TENSOR}/low", math.inf, "bounds"),
        (f"{TENSOR}/high", -math.inf, "bounds"),
        (f"{TENSOR}/high", math.nan, "bounds -inf to nan"),
        (f"{TENSOR}/unknown", 1, "channels.c.tensors.t.unknown is 1"),
    ],
)
def test_invalid_values_are_refused_by_name(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_charter(with_(path, value), "there.toml")
    assert str(refused.value).startswith("there.toml: ")
    assert "pydantic" not in str(refused.value)


def test_swapped_bounds_are_refused() -> None:
    text = with_(f"{TENSOR}/low", 2.0).replace("low = 2.0", "low = 2.0\nhigh = 1.0")
    with pytest.raises(ConfigurationError, match=r"bounds 2\.0 to 1\.0 allow no value"):
        read_charter(text)


@pytest.mark.parametrize(
    ("channel", "said"),
    [
        ({"kind": "moving", "rows": [3], "start": "x"}, "a moving mean has one weight per member"),
        ({"kind": "pool", "by": "row"}, "channel 'c' is drawn by row and has no rows"),
        (
            {"kind": "standing", "rows": [3], "tensors": {"count": {"shape": [3]}}},
            "'count' is the name of its rows' weights",
        ),
        (
            {"kind": "standing", "tensors": {"t": {"shape": [3], "up": "int8"}, "t.scale": {"shape": [3]}}},
            "the name 'c.t.scale' is reserved",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_contradictory_settings_are_refused(channel: dict[str, Any], said: str) -> None:
    whole_channel = {"tensors": {"t": {"shape": [3, 2]}}, **channel}
    with pytest.raises(ConfigurationError, match=said):
        read_charter(with_("channels/c", whole_channel))


@pytest.mark.parametrize("text", ["= 1", "\0", "name = ", "[channels.c", 'name = "a"\nname = "b"'])
def test_text_that_is_not_toml_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="here is not TOML"):
        read_charter(text, "here")


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200))
def test_any_text_is_refused_with_a_known_error(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_charter(text)


# --- start values


def test_start_values_are_identified_by_their_hash() -> None:
    made, body = charter(), encode_start_values(charter(), STARTS)
    assert made.channel_settings["weights"].start == values_fingerprint(CHANNELS["weights"], STARTS["weights"])
    back = decode_start_values(made, body)
    assert list(back) == ["weights"]
    assert back["weights"]["layer.1"].tobytes() == STARTS["weights"]["layer.1"].tobytes()
    assert back["weights"]["scale"].shape == ()
    assert back["weights"]["scale"] == np.float32(0.5)


def test_start_values_with_another_hash_are_refused() -> None:
    other = {"weights": {**STARTS["weights"], "scale": np.array(np.nextafter(np.float32(0.5), np.float32(1)))}}
    body = encode_start_values(charter(), other)
    with pytest.raises(ConfigurationError, match="there: the SHA-256 of the values of 'weights' is not the one"):
        decode_start_values(charter(), body, "there")


@pytest.mark.parametrize("damage", [b"", b"x", lambda body: body[:-1], lambda body: body + b"\0"])
def test_damaged_start_values_are_refused(damage: Any) -> None:
    body = encode_start_values(charter(), STARTS)
    with pytest.raises(ConfigurationError, match="there: a body of"):
        decode_start_values(charter(), damage(body) if callable(damage) else damage, "there")


def test_non_finite_start_values_are_refused() -> None:
    body = bytearray(encode_start_values(charter(), STARTS))
    body[-4:] = np.float32(np.nan).tobytes()
    with pytest.raises(ConfigurationError, match="is nan"):
        decode_start_values(charter(), bytes(body))


def test_charter_without_moving_means_has_no_start_values() -> None:
    still = {name: channel for name, channel in CHANNELS.items() if name != "weights"}
    made = build_charter("digits", METHOD, 3, still, {})
    assert made.start_values_message() == {}
    assert encode_start_values(made, {}) == b""
    assert decode_start_values(made, b"") == {}


def test_common_values_are_sent_as_float32_for_any_reply_encoding() -> None:
    assert common_values_message(CHANNELS["weights"]) == {
        "weights.layer.1": schema.Field((2, 2)),
        "weights.scale": schema.Field(()),
    }
    assert codec.encoded_size(common_values_message(CHANNELS["weights"])) == codec.encoded_size(
        charter().start_values_message()
    )


def test_start_values_are_stored_beside_the_charter() -> None:
    assert start_values_file(Path("some") / "digits.toml") == Path("some") / "digits.safetensors"
