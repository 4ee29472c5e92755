"""For any bytes, decoding returns what the schema says or raises WireError, and still works afterward."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.errors import WireError
from consilience.wire import codec
from consilience.wire.encodings import BIT, FLOAT16, INT4, INT8, INT32, Bit
from consilience.wire.layout import names_in_body
from consilience.wire.schema import Field

Values = np.ndarray[Any, Any]
Header = dict[str, Any]

MESSAGE = {
    "p.mean": Field((3, 2), low=-10, high=10),
    "p.mean.other": Field((3, 2)),
    "p.count": Field((3,), INT32, low=0, high=1000),
    "q.half": Field((2, 2), FLOAT16, low=-10, high=10),
    "q.byte": Field((2, 3), INT8, low=-10, high=10),
    "q.nibble": Field((3, 3), INT4, low=-10, high=10),
    "w.a": Field((3,), BIT, low=-10, high=10),
    "w.b": Field((2, 5), Bit(unit=0.5)),
    "w.c": Field((), BIT),
    "e.nought": Field((0, 4), INT8),
    "e.nothing": Field((0, 10000)),  # as long in the header as leaves 6 spaces at the end for forgeries
}
GENERATOR = np.random.default_rng(7)
TENSORS = {name: np.asarray(np.round(GENERATOR.uniform(0, 9, field.shape))) for name, field in MESSAGE.items()}
BODY = codec.encode(MESSAGE, TENSORS)
START = 8 + int.from_bytes(BODY[:8], "little")
HEADER: Header = json.loads(BODY[8:START])
STORED = names_in_body(MESSAGE)
"""The names in the header, by those in the message."""
SEEN = codec.decode(MESSAGE, BODY)


@pytest.fixture(autouse=True)
def valid_message_still_decodes() -> Any:
    yield
    seen = codec.decode(MESSAGE, BODY)
    assert all(seen[name].tobytes() == x.tobytes() for name, x in SEEN.items())


def decode_or_refuse(body: bytes) -> WireError | None:
    """Decode; anything but WireError, or anything outside the schema, fails the test."""
    try:
        seen = codec.decode(MESSAGE, body)
    except WireError as error:
        assert len(str(error)) < 1500
        assert error.code in codec.CODES
        assert len(error.field) < 110
        assert error.field.isprintable()
        return error
    for name, field in MESSAGE.items():
        x = seen[name]
        assert (x.shape, x.dtype) == (field.shape, np.int32 if field.encoding is INT32 else np.float32)
        assert np.isfinite(x).all()
        assert ((x >= field.low * 1.005) & (x <= field.high * 1.005)).all()
    return None


def refused(body: bytes, said: str, code: str | None = None, field: str = "") -> None:
    """Decode; the error must have this text and, where they are given, this code and field."""
    with pytest.raises(WireError, match=said) as caught:
        codec.decode(MESSAGE, body)
    assert caught.value.code in codec.CODES
    assert code is None or (caught.value.code, caught.value.field) == (code, field)


def with_text(text: str | bytes) -> bytes:
    """The good body with another header of the same length."""
    raw = text.encode() if isinstance(text, str) else text
    assert len(raw) <= START - 8, "the forged header does not fit"
    return BODY[:8] + raw.ljust(START - 8) + BODY[START:]


def compact(header: Header) -> str:
    return json.dumps(header, separators=(",", ":"))


def with_value(name: str, place: int, value: bytes) -> bytes:
    """The good body with other bytes at a value of a stored tensor."""
    at = START + HEADER[STORED[name]]["data_offsets"][0] + place * len(value)
    return BODY[:at] + value + BODY[at + len(value) :]


# Lengths


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, START, len(BODY) - 1, len(BODY) + 1, 2 * len(BODY)])
def test_wrong_body_length_is_refused(length: int) -> None:
    said = rf"body of {length} bytes was received; this message takes exactly {len(BODY)}"
    refused((BODY * 2)[:length], said, "wrong-length")


def test_every_truncated_body_is_refused() -> None:
    assert all(decode_or_refuse(BODY[:n]) for n in range(len(BODY)))


@pytest.mark.parametrize("claim", [0, 1, START - 9, START - 7, len(BODY), 2**31, 2**63, 2**64 - 1])
def test_wrong_header_length_is_refused(claim: int) -> None:
    said = f"header claims {claim} bytes; the header of this message has exactly"
    refused(claim.to_bytes(8, "little") + BODY[8:], said, "malformed-header")


# Headers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON object"),
        ("[]", "a JSON object is needed"),
        ("1", "a JSON object is needed"),
        ("{}", "missing"),
        ("{}{}", "not a JSON object"),
        ("{", "not a JSON object"),
        (b"\xff\xfe{}", "not a JSON object"),
        ('{"\\ud800":1}', "unknown"),
        ("NaN", "a JSON object is needed"),
        ("1" * (START - 8), "is 111|not a JSON object"),
        ("[" * (START - 8), "not a JSON object"),
        ('{"0":' * 50, "not a JSON object"),
        ('{"a":1,"a":2}', "key 'a' twice"),
        (compact(HEADER)[:-1] + ",", "not a JSON object"),
    ],
)
def test_wrong_header_is_refused(text: str | bytes, said: str) -> None:
    names = ("undeclared-name", "bits")  # the first of the missing names
    codes = {"missing": names, "unknown": names, "key 'a' twice": ("duplicate-name", "a")}
    refused(with_text(text), said, *codes.get(said, ("malformed-header",)))


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"c.t0":{"shape":['])
def test_deeply_nested_header_is_refused(opening: str) -> None:
    """A wide schema allows a long header, and so a deep one."""
    message = {f"c.t{i}": Field((1,)) for i in range(4000)}
    length = codec.encoded_size(message) - 4 * 4000 - 8
    text = (opening * length)[:length].encode()
    with pytest.raises(WireError, match="not a JSON object"):
        codec.decode(message, length.to_bytes(8, "little") + text + bytes(4 * 4000))


def test_very_long_numbers_are_refused() -> None:
    message = {f"c.t{i}": Field((1,)) for i in range(400)}
    length = codec.encoded_size(message) - 4 * 400 - 8
    for text in ("9" * length, '{"c.t0":' + "9" * 4000 + "}", "-" + "9" * 4299, "9e" + "9" * 4000):
        body = length.to_bytes(8, "little") + text.encode().ljust(length) + bytes(4 * 400)
        with pytest.raises(WireError) as caught:
            codec.decode(message, body)
        assert len(str(caught.value)) < 1500


def changed(name: str, key: str, value: Any) -> Header:
    stored = STORED[name]
    return {**HEADER, stored: {**HEADER[stored], key: value}}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("p.mean", "dtype", "I32"),
        ("p.mean", "dtype", "U32"),
        ("p.mean", "dtype", "XYZ"),
        ("p.mean", "dtype", None),
        ("p.mean", "shape", [2, 3]),
        ("p.mean", "shape", [6]),
        ("p.mean", "shape", [-3, 2]),
        ("p.mean", "shape", 6),
        ("bits", "shape", [10**6]),
        ("p.mean", "data_offsets", [0, 25]),
        ("p.mean", "data_offsets", [-1, 23]),
        ("p.mean", "data_offsets", [8, 32]),  # overlaps its neighbor
        ("p.mean", "data_offsets", [24, 0]),
        ("p.mean", "data_offsets", [0, 10**7]),
        ("p.mean", "data_offsets", {}),
        ("p.mean", "data_offsets", [0]),
        ("bits", "m", 1),
    ],
)
def test_wrong_tensor_layout_is_refused(name: str, key: str, value: Any) -> None:
    refused(with_text(compact(changed(name, key, value))), "is stored as", "wrong-layout", name)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("p.mean", "shape", [3, 2.0]),  # equal to 2, but not an integer
        ("p.mean", "data_offsets", [False, 24]),  # equal to 0, but not a number
    ],
)
def test_non_integer_that_equals_an_integer_is_refused(name: str, key: str, value: Any) -> None:
    refused(with_text(compact(changed(name, key, value))), "cannot be read", "malformed-header")


def test_swapped_or_shared_offsets_are_refused() -> None:
    first, second = HEADER["0"], HEADER["1"]
    refused(with_text(compact({**HEADER, "0": second, "1": first})), "'p.mean' is stored as")
    shared = with_text(compact({**HEADER, "1": first}))
    refused(shared, "'p.mean.other' is stored as", "wrong-layout", "p.mean.other")


def test_duplicate_name_is_refused() -> None:
    text = compact(HEADER)
    refused(with_text(text.replace('"3"', '"4"')), "key '4', tensor 'q.byte', twice", "duplicate-name", "q.byte")
    refused(with_text(text.replace('"shape"', '"dtype"', 1)), "key 'dtype' twice")


def test_missing_unknown_or_renamed_names_are_refused() -> None:
    text = compact(HEADER)
    renamed = with_text(text.replace('"3"', '"z"'))
    refused(renamed, r"missing \['q.half'\], unknown \['z'\]", "undeclared-name", "q.half")
    fewer = with_text(compact({k: v for k, v in HEADER.items() if k != "bits"}))
    refused(fewer, r"missing \['bits'\], unknown \[\]", "undeclared-name", "bits")


@pytest.mark.parametrize(
    ("name", "field"),
    [("z", "z"), ("\n", r"'\n'"), ("\ud800", r"'\ud800'"), ("z" * 120, "'" + "z" * 47 + "..." + "z" * 48 + "'")],
)
def test_unknown_name_is_reported_short_and_printable(name: str, field: str) -> None:
    refused(with_text(compact({**dict.fromkeys(HEADER, 1), name: 1})), "unknown", "undeclared-name", field)


def test_metadata_is_refused() -> None:
    small = {k: v for k, v in HEADER.items() if k != "1"}
    refused(with_text(compact({**small, "__metadata__": {}})), "missing .*'p.mean.other'.*unknown .*'__metadata__'")
    refused(with_text(compact({**small, "__metadata__": {"a": "b"}})), "unknown .*'__metadata__'")
    text = compact({**HEADER, "__metadata__": {"a": "b"}}).encode()
    refused(len(text).to_bytes(8, "little") + text + BODY[START:], "body of")


def test_order_of_header_keys_is_free() -> None:
    body = with_text(compact(dict(reversed(HEADER.items()))))
    assert decode_or_refuse(body) is None
    assert all(x.tobytes() == SEEN[name].tobytes() for name, x in codec.Codec(MESSAGE).read(body).items())


# Values

NANS = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("value", NANS, ids=str)
@pytest.mark.parametrize(
    ("name", "dtype", "place", "index"),
    [
        ("p.mean", np.float32, 3, r"\(1, 1\)"),
        ("q.half", np.float16, 2, r"\(1, 0\)"),
        ("q.byte.scale", np.float32, 1, r"\(1,\)"),
        ("scales", np.float32, 0, r"\(0,\)"),
    ],
)
def test_non_finite_values_are_refused(name: str, dtype: Any, place: int, index: str, value: float) -> None:
    code = "bad-scale" if "scale" in name else "not-finite"
    refused(with_value(name, place, dtype(value).tobytes()), rf"'{name}' at {index} is {value}", code, name)


def test_signaling_nans_are_refused_without_a_warning() -> None:
    for name in ("p.mean", "q.byte.scale", "int4_scales", "scales"):
        refused(with_value(name, 0, (0x7F800001).to_bytes(4, "little")), "is nan")
    refused(with_value("q.half", 0, (0x7C01).to_bytes(2, "little")), "is nan")


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("p.mean", 0, np.float32(10.001), r"'p.mean' at \(0, 0\) is 10.001; allowed is -10 to 10"),
        ("q.half", 3, np.float16(-10.01), r"'q.half' at \(1, 1\) is -10.0\d+; allowed is -10 to 10"),
        ("p.count", 2, np.int32(-1), r"'p.count' at \(2,\) is -1; allowed is 0 to 1000"),
        ("p.count", 0, np.int32(2**31 - 1), r"'p.count' at \(0,\) is 2147483647"),
        ("q.byte", 4, np.int8(-128), r"'q.byte' at \(1, 1\) is -128; levels run from -127 to 127"),
        ("q.byte.scale", 0, np.float32(-0.01), r"'q.byte.scale' at \(0,\) is -0.01"),
        ("q.byte.scale", 0, np.float32(-0.0), r"'q.byte.scale' at \(0,\) is -0.0"),
        ("q.byte.scale", 0, np.float32(1.0), r"'q.byte' at \(0, \d\) is \d+.0; allowed is -10 to 10"),
        ("q.byte.scale", 0, np.float32(3e38), r"'q.byte.scale' at \(0,\) is 3e\+38"),
        ("int4", 1, np.uint8(0x18), r"'q.nibble' at \(1, 0\) is -8; levels run from -7 to 7"),
        ("int4", 4, np.uint8(0x11), "'int4' has more than its 9 values"),
        ("int4_scales", 2, np.float32(-0.01), r"'int4_scales' at \(2,\) is -0.01"),
        ("int4_scales", 2, np.float32(-0.0), r"'int4_scales' at \(2,\) is -0.0"),
        ("int4_scales", 2, np.float32(3e38), r"'int4_scales' at \(2,\) is 3e\+38"),
        ("int4_scales", 1, np.float32(1.5), r"'q.nibble' at \(1, \d\) is 10.5; allowed is -10 to 10"),
        ("int4_scales", 0, np.float32(0), r"'int4_scales' at \(0,\) is 0.0; the scale of a row is 0 if all"),
        ("scales", 0, np.float32(10.1), r"'w.a' at \(0,\) is 10.1"),
        ("scales", 1, np.float32(0.25), r"'scales' at \(1,\) is 0.25; the schema fixes \[None, 0.5, None\]"),
        ("scales", 2, np.float32(-1), r"'scales' at \(2,\) is -1.0"),
        ("bits", 1, np.uint8(0xFF), "'bits' has more than its 14 values"),
        ("bits", 1, np.uint8(1), "'bits' has more than its 14 values"),
    ],
)
def test_values_outside_the_schema_are_refused(name: str, place: int, value: Any, said: str) -> None:
    field = said.split("'")[1]
    code = "padding" if field in ("bits", "int4") else "bad-scale" if "scale" in field else "out-of-bounds"
    refused(with_value(name, place, value.tobytes()), said, code, field)


# Mutations


def flip(random: np.random.Generator, body: bytearray) -> None:
    body[int(random.integers(len(body)))] ^= 1 << int(random.integers(8))


def overwrite(random: np.random.Generator, body: bytearray) -> None:
    at = int(random.integers(len(body)))
    body[at : at + 4] = random.bytes(len(body[at : at + 4]))


def copy_within(random: np.random.Generator, body: bytearray) -> None:
    source, target, length = (int(n) for n in random.integers(0, [len(body), len(body), 40]))
    piece = body[source : source + length]
    body[target : target + length] = piece[: len(body[target : target + length])]


def header_character(random: np.random.Generator, body: bytearray) -> None:
    body[int(random.integers(8, START))] = int(random.choice(list(b'{}[]",:0123456789 \\-.eEtn')))


def cut(random: np.random.Generator, body: bytearray) -> None:
    del body[int(random.integers(len(body))) :]


def insert(random: np.random.Generator, body: bytearray) -> None:
    at = int(random.integers(len(body)))
    body[at:at] = random.bytes(1)


MUTATIONS: list[Callable[[np.random.Generator, bytearray], None]] = [
    flip,
    overwrite,
    copy_within,
    header_character,
    cut,
    insert,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_mutated_bodies_decode_or_are_refused(mutate: Callable[[np.random.Generator, bytearray], None]) -> None:
    random = np.random.default_rng(11)
    for _ in range(800):
        body = bytearray(BODY)
        for _ in range(int(random.integers(1, 4))):
            if body:
                mutate(random, body)
        decode_or_refuse(bytes(body))


def test_every_flipped_bit_decodes_or_is_refused() -> None:
    taken = 0
    for at in range(8 * len(BODY)):
        body = bytearray(BODY)
        body[at // 8] ^= 1 << (at % 8)
        taken += decode_or_refuse(bytes(body)) is None
    assert 0 < taken < 8 * (len(BODY) - START)  # in the data a flip may give another valid value, elsewhere never


def test_every_flipped_bit_of_the_header_is_refused() -> None:
    for at in range(8 * START):
        body = bytearray(BODY)
        body[at // 8] ^= 1 << (at % 8)
        if body[8:START].rstrip(b" \t\n\r") != BODY[8:START].rstrip():
            assert decode_or_refuse(bytes(body)) or json.loads(body[8:START]) == HEADER


@settings(deadline=None, max_examples=120)
@given(st.binary(max_size=2 * len(BODY)))
def test_arbitrary_bytes_are_refused(body: bytes) -> None:
    assert decode_or_refuse(body)
    assert decode_or_refuse(BODY[:8] + body.ljust(len(BODY) - 8)[: len(BODY) - 8])


@settings(deadline=None, max_examples=120)
@given(st.binary(min_size=len(BODY) - START, max_size=len(BODY) - START))
def test_arbitrary_data_with_valid_header_decodes_or_is_refused(data: bytes) -> None:
    decode_or_refuse(BODY[:START] + data)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=10,
)


@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from(sorted(name for name, stored in STORED.items() if stored in HEADER)),
    st.sampled_from(["dtype", "shape", "data_offsets"]),
    JSON,
)
def test_wrong_json_in_the_header_is_refused(name: str, key: str, value: Any) -> None:
    text = compact(changed(name, key, value)).encode()[: START - 8]
    if changed(name, key, value) != HEADER:
        assert decode_or_refuse(with_text(text))
    assert decode_or_refuse(with_text(json.dumps(value).encode()[: START - 8]))
