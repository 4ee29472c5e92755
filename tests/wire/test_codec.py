"""Tensors to bytes and back: by hand first, then over random schemas."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import load, save

from consilience.errors import WireError
from consilience.wire import codec
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8, INT32, Bit, Encoding
from consilience.wire.schema import Channel, Field, Mean, Pool, Tensor

Values = np.ndarray[Any, Any]
LARGEST = float(np.finfo(np.float32).max)
LOSSY = [FLOAT16, INT8, INT4, BIT, Bit(unit=0.5)]


def floats(*values: Any) -> Values:
    return np.asarray(values, dtype=np.float32)


def opened(body: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a body."""
    end = 8 + int.from_bytes(body[:8], "little")
    return json.loads(body[8:end]), body[end:]


# By hand


def test_float32_body_byte_by_byte() -> None:
    message = {"p.mean": Field((2,))}
    header = b'{"0":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'  # 54 bytes, and 2 spaces
    body = (56).to_bytes(8, "little") + header + b" " * 2 + floats(1.0, -2.5).tobytes()
    assert codec.encode(message, {"p.mean": floats(1.0, -2.5)}) == body
    assert codec.encoded_size(message) == len(body) == 72
    assert codec.decode(message, body)["p.mean"].tolist() == [1.0, -2.5]


def test_names_of_tensors_are_not_in_a_body() -> None:
    """The header depends on shapes and encodings alone, in the order of the message."""
    encodings = (FLOAT32, INT8, BIT, INT4, FLOAT16, BIT, FLOAT32)
    long = {
        f"weights.base.layer.{i}.attention.query.lora_A.default.weight": Field((2, 3), e)
        for i, e in enumerate(encodings)
    }
    short = {str(i): field for i, field in enumerate(long.values())}
    values = np.random.default_rng(0).standard_normal((len(long), 2, 3), dtype=np.float32)
    body = codec.encode(long, dict(zip(long, values, strict=True)))
    assert body == codec.encode(short, dict(zip(short, values, strict=True))) and b"lora" not in body
    assert list(opened(body)[0]) == [*("0", "1.scale", "6", "int4_scales", "scales"), "4", "1", *("bits", "int4")]
    assert load(body)["6"].tolist() == values[6].tolist()  # any reader of safetensors finds them
    for (name, field), x in zip(long.items(), values, strict=True):
        assert codec.decode(long, body)[name].tolist() == field.encoding.quantize(x).tolist(), name


def test_ten_tensors_and_more_are_in_the_order_of_safetensors() -> None:
    """Which sorts names as text: "10" comes before "2"."""
    message = {f"p.{i}": Field((1,)) for i in range(12)}
    body = codec.encode(message, {f"p.{i}": floats(i) for i in range(12)})
    assert body == save({str(i): floats(i) for i in range(12)})
    assert [codec.decode(message, body)[f"p.{i}"][0] for i in range(12)] == list(range(12))


def test_errors_about_a_header_have_the_names_of_the_message() -> None:
    message = {"p.first": Field((1,)), "p.second": Field((2,), INT8)}
    body = codec.encode(message, {"p.first": floats(1.0), "p.second": floats(1.0, 2.0)})
    for stored, other, field, said in (
        (
            b'"0":',
            b'"9":',
            "p.first",
            r"missing \['p.first'\], unknown \['9'\]; declared are \['p.first', 'p.second', '",
        ),
        (b'"1":', b'"0":', "p.first", "has the key '0', tensor 'p.first', twice"),
        (b'"dtype":"I8","shape":[2]', b'"dtype":"I8","shape":[1]', "p.second", "tensor 'p.second' is stored as"),
        (b'"1.scale"', b'"0.scale"', "p.second.scale", r"missing \['p.second.scale'\], unknown \['0.scale'\]"),
    ):
        assert stored in body
        with pytest.raises(WireError, match=said) as caught:
            codec.decode(message, body.replace(stored, other))
        assert caught.value.field == field


def test_a_body_with_the_names_of_the_message_is_told_that_names_are_places() -> None:
    message = {"x": Field((1,))}
    body = codec.encode(message, {"x": floats(1.0)}).replace(b'"0":', b'"x":')
    with pytest.raises(
        WireError, match=r"missing \['x'\], unknown \['x'\].*name is its place in the message, such as '0'"
    ):
        codec.decode(message, body)


def test_every_encoding_in_one_body() -> None:
    message = {
        "p.mean": Field((1, 2), FLOAT32),
        "p.count": Field((2,), INT32, low=0),
        "q.half": Field((2,), FLOAT16),
        "q.byte": Field((2, 3), INT8),
        "w.a": Field((3,), BIT),
        "w.b": Field((2, 2), BIT),
    }
    tensors = {
        "p.mean": floats([0.1, 7.0]),
        "p.count": np.asarray([3, 0]),
        "q.half": floats(1 + 2**-11, 1e6),
        "q.byte": floats([127.0, -64.0, 0.5], [0.0, 0.0, 0.0]),
        "w.a": floats(1.5, -1.5, 0.0),
        "w.b": floats([-3.0, 1.0], [-2.0, -2.0]),
    }
    header, data = opened(codec.encode(message, tensors))
    assert {name: (part["dtype"], part["shape"], part["data_offsets"]) for name, part in header.items()} == {
        "0": ("F32", [1, 2], [0, 8]),
        "3.scale": ("F32", [2], [8, 16]),
        "scales": ("F32", [2], [16, 24]),
        "1": ("I32", [2], [24, 32]),
        "2": ("F16", [2], [32, 36]),
        "3": ("I8", [2, 3], [36, 42]),
        "bits": ("U8", [1], [42, 43]),
    }
    assert data[:8] == floats(0.1, 7.0).tobytes()
    assert data[8:24] == floats(1.0, 0.0, 1.0, 2.0).tobytes()
    assert data[24:32] == np.asarray([3, 0], dtype=np.int32).tobytes()
    assert data[32:36] == np.asarray([1.0, 65504.0], dtype=np.float16).tobytes()
    assert data[36:42] == bytes([127, 256 - 64, 0, 0, 0, 0])
    assert data[42:] == bytes([0b1010100_0])  # a: + - +, b: - + - -, one bit left over


def test_receiver_decodes_quantized_values() -> None:
    message = {"w.a": Field((3,), BIT), "q.byte": Field((1, 3), INT8), "p.count": Field((2,), INT32)}
    tensors = {"w.a": floats(1.5, -1.5, 0.0), "q.byte": floats([127.0, -64.0, 0.5]), "p.count": np.asarray([3, -1])}
    seen = codec.decode(message, codec.encode(message, tensors))
    assert list(seen) == ["w.a", "q.byte", "p.count"]
    assert {name: x.tolist() for name, x in seen.items()} == {
        "w.a": [1.0, -1.0, 1.0],
        "q.byte": [[127.0, -64.0, 0.0]],
        "p.count": [3, -1],
    }
    assert [str(x.dtype) for x in seen.values()] == ["float32", "float32", "int32"]
    assert all(x.flags.writeable for x in seen.values())


def test_bits_are_packed_in_the_order_of_the_message() -> None:
    fields = {"a": Field((1,), BIT), "b": Field((2,), BIT)}
    tensors = {"b": floats(1, 1), "a": floats(-1)}
    assert opened(codec.encode(fields, tensors))[1][-1] == 0b011_00000
    assert opened(codec.encode(dict(reversed(fields.items())), tensors))[1][-1] == 0b110_00000


def test_bits_with_a_fixed_unit_have_no_scales() -> None:
    vote = Field((9,), Bit(unit=1.0))
    body = codec.encode({"v": vote, "w": vote}, {"v": np.arange(9.0) - 4, "w": -np.ones(9)})
    header, data = opened(body)
    assert list(header) == ["bits"]
    assert data == bytes([0b00001111, 0b1_0000000, 0])
    seen = codec.decode({"v": vote, "w": vote}, body)
    assert seen["v"].tolist() == [-1] * 4 + [1] * 5
    mixed = {"v": vote, "w": Field((9,), BIT)}
    assert set(opened(codec.encode(mixed, {"v": np.ones(9), "w": np.ones(9)}))[0]) == {"bits", "scales"}


def test_message_without_scales_may_use_the_name_scales() -> None:
    message = {"v": Field((1,), Bit(unit=2.0)), "scales": Field((1,))}
    seen = codec.decode(message, codec.encode(message, {"v": floats(-1), "scales": floats(7)}))
    assert (seen["v"].tolist(), seen["scales"].tolist()) == ([-2.0], [7.0])


def test_empty_message_has_no_bytes() -> None:
    assert codec.encode({}, {}) == b""
    assert codec.encoded_size({}) == 0
    assert codec.decode({}, b"") == {}
    with pytest.raises(WireError, match="1 bytes was received; this message takes exactly 0"):
        codec.decode({}, b"x")


def test_memory_order_does_not_matter() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for view in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x.astype(">f4"), x.astype(np.float64)):
        assert codec.encode({"x": Field((2, 3))}, {"x": view}) == codec.encode({"x": Field((2, 3))}, {"x": x})
    counts = {"n": Field((2, 3), INT32)}
    assert codec.encode(counts, {"n": x.T.copy().T}) == codec.encode(counts, {"n": x.astype(np.uint8)})


def test_wire_does_not_import_torch() -> None:
    script = "import sys, consilience.wire.codec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_public_names_are_exact() -> None:
    assert codec.__all__ == ["CODES", "Codec", "decode", "encode", "encoded_size"]


# Refusals of encode


@pytest.mark.parametrize(
    ("field", "value", "code", "said"),
    [
        (Field((2,)), floats(0, np.nan), "not-finite", r"'x' at \(1,\) is nan"),
        (Field((1, 2)), floats([-np.inf, 0]), "not-finite", r"'x' at \(0, 0\) is -inf"),
        (Field((1,)), np.asarray([1e300]), "not-finite", r"'x' at \(0,\) is 1e\+300; a finite float32"),
        (Field((), high=2.0), np.float32(3), "out-of-bounds", r"'x' at \(\) is 3.0; allowed is -inf to 2.0"),
        (Field((2,), BIT, low=-1), floats(0, -2), "out-of-bounds", r"'x' at \(1,\) is -2.0; allowed is -1 to inf"),
        (Field((2,), INT32, low=0), np.asarray([0, -1]), "out-of-bounds", r"'x' at \(1,\) is -1; allowed is 0 to inf"),
        (Field((1,), INT32), floats(0.5), "wrong-type", r"'x' at \(0,\) is 0.5; a 32-bit integer"),
        (Field((1,), INT32), floats(np.nan), "not-finite", r"'x' at \(0,\) is nan; a 32-bit integer"),
        (Field((1,), INT32), np.asarray([2**31]), "out-of-bounds", r"'x' at \(0,\) is 2147483648; a 32-bit integer"),
        (Field((2,)), floats(1, 2, 3), "wrong-layout", r"'x' has shape \(3,\); the schema needs \(2,\)"),
        (Field((1,)), [1.0], "wrong-type", "'x' has type list; a NumPy array"),
        (Field((1,)), np.asarray([1j]), "wrong-type", "'x' has type complex128"),
        (Field((1,)), np.asarray([True]), "wrong-type", "'x' has type bool"),
        (Field((1,), INT4), floats(np.nan), "not-finite", r"'x' at \(0,\) is nan; a finite float32"),
        (Field((1, 1), INT8), floats([LARGEST]), "bad-scale", r"'x.scale' at \(0,\) is 2.6\d+e\+36"),
        (
            Field((1,), Encoding("morse", 5)),
            floats(1),
            "wrong-layout",
            "'x' has encoding 'morse'; known: float32, int32",
        ),
    ],
)
def test_encode_refuses_invalid_tensors(field: Field, value: Values, code: str, said: str) -> None:
    with pytest.raises(WireError, match=said) as caught:
        codec.encode({"x": field}, {"x": value})
    assert (caught.value.code, caught.value.field) == (code, "x.scale" if code == "bad-scale" else "x")


def test_encode_refuses_missing_and_unknown_names() -> None:
    with pytest.raises(WireError, match=r"missing \['a'\], unknown \['b'\]; declared are \['a'\]") as caught:
        codec.encode({"a": Field((1,))}, {"b": floats(1)})
    assert (caught.value.code, caught.value.field) == ("undeclared-name", "a")
    with pytest.raises(WireError, match="unknown") as caught:
        codec.encode({}, {"b": floats(1)})
    assert (caught.value.code, caught.value.field) == ("undeclared-name", "b")


@pytest.mark.parametrize(
    "message",
    [
        {"bits": Field((1,)), "b": Field((1,), BIT)},
        {"scales": Field((1,)), "b": Field((1,), BIT)},
        {"b.scale": Field((1,)), "b": Field((1,), INT8)},
        {"int4": Field((1,)), "b": Field((1,), INT4)},
        {"int4_scales": Field((1,)), "b": Field((1,), INT4)},
    ],
)
def test_clashing_names_are_refused(message: dict[str, Field]) -> None:
    with pytest.raises(WireError, match="is reserved or used twice"):
        codec.encode(message, {name: floats(1) for name in message})
    with pytest.raises(WireError, match="is reserved or used twice") as caught:
        codec.encoded_size(message)
    assert (caught.value.code, caught.value.field) == ("duplicate-name", next(iter(message)))


def test_wire_error_can_be_pickled() -> None:
    error = WireError("too long", code="wrong-length", field="p.mean")
    copy = pickle.loads(pickle.dumps(error))
    assert (
        (str(copy), copy.code, copy.field)
        == (str(error), error.code, error.field)
        == ("too long", error.code, "p.mean")
    )
    assert (WireError("what").code, WireError("what").field) == ("malformed", "")


# Bounds


@pytest.mark.parametrize("encoding", [FLOAT32, *LOSSY], ids=str)
def test_values_at_the_bounds_are_accepted(encoding: Encoding) -> None:
    field = Field((3, 2), encoding, low=-0.1, high=0.7)
    x = floats([0.7, -0.1], [-0.1, -0.1], [0.7, 0.69999])
    assert codec.decode({"x": field}, codec.encode({"x": field}, {"x": x}))["x"].shape == (3, 2)


@pytest.mark.parametrize("encoding", [FLOAT32, *LOSSY], ids=str)
@pytest.mark.parametrize("bound", [0.0, 1e-45, 1e-40, 1e5, 1e38, LARGEST, 1e300])
def test_bounds_may_be_extreme(encoding: Encoding, bound: float) -> None:
    field = Field((1,), encoding, low=-bound, high=bound)
    x = floats(min(bound, 3e38))
    assert codec.decode({"x": field}, codec.encode({"x": field}, {"x": x}))["x"].shape == (1,)


def test_bounds_of_counts_are_exact() -> None:
    field = Field((1,), INT32, high=2**24 + 1)
    x = np.asarray([2**24 + 1])
    assert codec.decode({"x": field}, codec.encode({"x": field}, {"x": x}))["x"] == x
    with pytest.raises(WireError, match="16777218"):
        codec.encode({"x": field}, {"x": x + 1})


@pytest.mark.parametrize("encoding", [FLOAT32, FLOAT16, INT8, INT4, BIT], ids=str)
@pytest.mark.parametrize("value", [1.02, -1.02])
def test_values_beyond_the_bounds_are_refused_by_decode(encoding: Encoding, value: float) -> None:
    body = codec.encode({"x": Field((1, 2), encoding)}, {"x": floats([value, value])})
    with pytest.raises(WireError, match=r"'x' at \(0, 0\) is -?1.0\d+; allowed is -1 to 1"):
        codec.decode({"x": Field((1, 2), encoding, low=-1, high=1)}, body)


def test_rounding_by_half_a_step_is_allowed() -> None:
    """The step is 1, so 0.51 becomes 1: beyond the bound, but valid."""
    field = Field((2,), INT8, low=-127, high=0.51)
    assert codec.decode({"x": field}, codec.encode({"x": field}, {"x": floats(-127, 0.51)}))["x"].tolist() == [-127, 1]


def test_quantization_step_wider_than_the_bounds_has_no_tolerance() -> None:
    body = codec.encode({"x": Field((2,), INT8)}, {"x": floats(127, 0)})
    forged = body[:-6] + np.float32(1.9).tobytes() + bytes([1, 0])  # one scale, then two levels
    with pytest.raises(WireError, match=r"'x' at \(0,\) is 1.9; allowed is -1 to 1"):
        codec.decode({"x": Field((2,), INT8, low=-1, high=1)}, forged)


def test_scale_at_the_bound_is_allowed_and_not_rounded_up() -> None:
    bound, rounded_up = np.float32(0.1), 0
    for n in range(1, 200):
        x = np.full(n, bound)
        rounded_up += bool(BIT.scale(x) > bound)
        for sign in (1, -1):
            field = Field((n,), BIT, low=-0.1, high=0.1)
            assert codec.decode({"x": field}, codec.encode({"x": field}, {"x": sign * x}))["x"].shape == (n,)
    assert not rounded_up


def test_subnormal_values_within_bounds_are_accepted() -> None:
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    field = Field((1,), INT8, low=150 * smallest)
    x = floats(190 * smallest)
    assert codec.decode({"x": field}, codec.encode({"x": field}, {"x": x}))["x"] == np.float32(127 * smallest)


def test_negative_values_are_refused_if_the_lower_bound_is_zero() -> None:
    for encoding in (BIT, INT8, INT4):
        body = codec.encode({"x": Field((2,), encoding)}, {"x": floats(1, -1)})
        with pytest.raises(WireError, match=r"'x' at \(1,\) is -1.0"):
            codec.decode({"x": Field((2,), encoding, low=0)}, body)


# One codec for many bodies

COUNTED = {
    "p.mean": Field((2, 3), low=-9, high=9),
    "p.count": Field((2,), INT32, low=0),
    "q.half": Field((3,), FLOAT16),
    "q.byte": Field((2, 2), INT8),
    "q.nibble": Field((3, 3), INT4),
    "r.nibble": Field((2,), INT4),
    "w.a": Field((3,), BIT, low=-9, high=9),
    "w.b": Field((2, 5), BIT),
}


def counted(seed: int) -> dict[str, Values]:
    random = np.random.default_rng(seed)
    return {name: np.round(random.uniform(0, 9, field.shape)) for name, field in COUNTED.items()}


def test_codec_can_be_reused() -> None:
    made = codec.Codec(COUNTED)
    assert made.size == codec.encoded_size(COUNTED)
    for seed in range(3):
        body = made.encode(counted(seed))
        assert body == codec.encode(COUNTED, counted(seed))
        expected = codec.decode(COUNTED, body)
        for seen in (made.decode(body), made.read(body), made.decode(memoryview(b"x" + body)[1:])):
            assert {name: x.tobytes() for name, x in seen.items()} == {
                name: x.tobytes() for name, x in expected.items()
            }


def test_changing_the_message_does_not_change_its_codec() -> None:
    message = {"x": Field((1,))}
    made = codec.Codec(message)
    message["y"] = Field((1,))
    assert made.decode(made.encode({"x": floats(7)})) == {"x": 7}


def test_decode_of_some_tensors_still_checks_all() -> None:
    made = codec.Codec(COUNTED)
    body = made.encode(counted(0))
    whole = made.decode(body)
    for only in ([], ["p.count"], {"w.b", "p.mean"}, ["q.byte", "q.half", "other"], ["r.nibble"], whole.keys()):
        for seen in (made.decode(body, only), made.read(body, only)):
            assert list(seen) == [name for name in COUNTED if name in only]
            assert all(x.tobytes() == whole[name].tobytes() for name, x in seen.items())
    start = 8 + int.from_bytes(body[:8], "little") + opened(body)[0]["0"]["data_offsets"][0]
    broken = body[:start] + floats(np.nan).tobytes() + body[start + 4 :]
    with pytest.raises(WireError, match=r"'p.mean' at \(0, 0\) is nan"):
        made.decode(broken, only=["p.count"])


def test_read_does_not_check_values() -> None:
    made = codec.Codec({"x": Field((2,), low=0), "n": Field((1,), INT32, low=0)})
    body = made.encode({"x": floats(1, 2), "n": np.asarray([3])})
    forged = bytes(body[:-12]) + floats(-1, np.inf).tobytes() + np.int32(-5).tobytes()
    assert {name: x.tolist() for name, x in made.read(forged).items()} == {"x": [-1, np.inf], "n": [-5]}


def test_arrays_of_bytes_are_views() -> None:
    made = codec.Codec({"x": Field((2,))})
    body = made.encode({"x": floats(1, 2)})
    assert not made.decode(body)["x"].flags.writeable
    own = bytearray(body)
    made.decode(own)["x"][0] = 7
    assert made.read(own)["x"].tolist() == [7, 2]
    codec.decode(made.message, own)["x"][0] = 9  # a copy
    assert made.read(own)["x"].tolist() == [7, 2]


# Over random schemas

SHAPES = st.one_of(st.just(()), array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
ENCODINGS = st.sampled_from([FLOAT32, INT32, *LOSSY])
ENDS = st.one_of(st.floats(-1e30, 1e30), st.floats(-1, 1), st.sampled_from([-1.0, 0.0, 0.1, 1e5]))
LETTERS = st.characters(exclude_categories=["Cs"])  # any but surrogates, which have no UTF-8
NAMES = st.lists(st.text(LETTERS, max_size=6).map("c.{}".format), unique=True, max_size=6)


@st.composite
def bodies(draw: st.DrawFn, inside: bool = False) -> tuple[dict[str, Field], dict[str, Values]]:
    """A schema and tensors that fit it; with `inside`, the schema has bounds."""
    message: dict[str, Field] = {}
    tensors: dict[str, Values] = {}
    for name in draw(NAMES):
        encoding, shape = draw(ENCODINGS), draw(SHAPES)
        if encoding is INT32:
            message[name], tensors[name] = Field(shape, encoding), draw(arrays(np.int32, shape))
            continue
        low, high = sorted([draw(ENDS), draw(ENDS)]) if inside else (-1e30, 1e30)
        edges = [float(np.float32(end)) + 0.0 for end in (low, high)]  # + 0.0: the range from 0 to -0 is empty
        elements = st.one_of(st.floats(*edges, width=32), st.sampled_from(edges))
        tensors[name] = draw(arrays(np.float32, shape, elements=elements))
        message[name] = Field(shape, encoding, low, high) if inside else Field(shape, encoding)
    return message, tensors


@settings(deadline=None, max_examples=200)
@given(bodies())
def test_round_trip_equals_quantize_bit_for_bit(case: tuple[dict[str, Field], dict[str, Values]]) -> None:
    message, tensors = case
    body = codec.encode(message, tensors)
    assert codec.encoded_size(message) == len(body)
    assert codec.encode(message, dict(reversed(tensors.items()))) == body
    if message:
        assert save(load(body)) == body  # the same bytes as written by safetensors
    seen = codec.decode(message, body)
    assert list(seen) == list(message)
    assert {name: x.tobytes() for name, x in codec.Codec(message).read(body).items()} == {
        name: x.tobytes() for name, x in seen.items()
    }
    for name, field in message.items():
        expected = np.asarray(field.encoding.quantize(tensors[name]))
        assert (seen[name].dtype, seen[name].shape) == (expected.dtype, field.shape)
        assert seen[name].tobytes() == expected.tobytes()


@settings(deadline=None, max_examples=100)
@given(bodies())
def test_round_trip_equals_quantize_in_torch(case: tuple[dict[str, Field], dict[str, Values]]) -> None:
    message, tensors = case
    seen = codec.decode(message, codec.encode(message, tensors))
    for name, field in message.items():
        expected = field.encoding.quantize(torch.from_numpy(tensors[name].copy())).numpy()
        if field.encoding == BIT:  # torch adds in another order
            np.testing.assert_allclose(seen[name], expected, rtol=1e-6)
        else:
            assert seen[name].tobytes() == expected.tobytes()


@settings(deadline=None, max_examples=200)
@given(bodies(inside=True))
def test_values_within_bounds_are_never_refused(case: tuple[dict[str, Field], dict[str, Values]]) -> None:
    message, tensors = case
    assert codec.decode(message, codec.encode(message, tensors)).keys() == message.keys()


def test_strided_views_are_encoded_as_quantize_computes_them() -> None:
    """A mean over a transposed view may be summed in another order; the wire must use the same."""
    x = np.random.default_rng(0).standard_normal((301, 97)).astype(np.float32)
    for view in (x, x.T, x[::3, ::2], np.asfortranarray(x)):
        message = {"x": Field(view.shape, BIT), "y": Field(view.shape, INT8), "z": Field(view.shape, INT4)}
        seen = codec.decode(message, codec.encode(message, dict.fromkeys("xyz", view)))
        assert seen["x"].tobytes() == np.ascontiguousarray(BIT.quantize(view)).tobytes()
        assert seen["y"].tobytes() == np.ascontiguousarray(INT8.quantize(view)).tobytes()
        assert seen["z"].tobytes() == np.ascontiguousarray(INT4.quantize(view)).tobytes()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_channel_messages_have_the_counted_size(direction: Any) -> None:
    tensors = {"mean": Tensor((10, 84), up=FLOAT16, down=INT8)}
    channels: list[Channel] = [Mean("p", tensors, rows=(10,)), Pool("o", tensors, keep=2, draw=3)]
    channels.append(Mean("w", {f"layer.{i}": Tensor((i, 7), up=BIT, down=BIT) for i in range(12)}, moving=True))
    message = {name: field for channel in channels for name, field in channel.message(direction).items()}
    body = codec.encode(message, {name: np.ones(field.shape) for name, field in message.items()})
    assert len(body) == codec.encoded_size(message)
    assert len(codec.decode(message, body)) == 1 + 1 + 1 + 12
