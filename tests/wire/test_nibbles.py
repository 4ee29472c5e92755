"""Four bits per value, by hand: levels, bytes, refusals, and the same bits in NumPy, torch and on the wire."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import vmap

from consilience.errors import WireError
from consilience.wire import codec
from consilience.wire.encodings import INT4
from consilience.wire.schema import Field

Values = np.ndarray[Any, Any]


def floats(*values: Any) -> Values:
    return np.asarray(values, dtype=np.float32)


def data_of(body: bytes) -> bytes:
    return body[8 + int.from_bytes(body[:8], "little") :]


def test_levels_and_scales_by_hand() -> None:
    levels, scale = INT4.levels(floats([7.0, -2.4, 0.5], [0.0, 0.0, 0.0], [-14.0, 3.0, 1.1]))
    assert scale.tolist() == [1.0, 0.0, 2.0]
    assert levels.tolist() == [[7, -2, 0], [0, 0, 0], [-7, 2, 1]]  # halves are rounded to even
    assert INT4.quantize(floats([7.0, -2.4, 0.5], [-14.0, 3.0, 1.1])).tolist() == [[7, -2, 0], [-14, 4, 2]]


def test_there_is_one_zero() -> None:
    for zero in (INT4.quantize(floats(-0.001, 1.0))[0], INT4.quantize(torch.tensor([-0.001, 1.0]))[0]):
        assert math.copysign(1.0, float(zero)) == 1.0
    field = {"x": Field((2,), INT4)}
    assert codec.encode(field, {"x": floats(-0.0, 0.0)}) == codec.encode(field, {"x": floats(0.0, 0.0)})


def test_tensors_of_a_body_share_their_bytes() -> None:
    """Nine values are five bytes, the first of two in the upper half; -1 is 15, -7 is 9, and the last half is 0."""
    message = {"w.b": Field((2, 3), INT4), "w.a": Field((3,), INT4)}
    body = codec.encode(message, {"w.b": floats([7, -1, 1], [0, 0, 0]), "w.a": floats(-14, 4, 2)})
    header = json.loads(body[8 : len(body) - len(data_of(body))])
    assert {name: (part["dtype"], part["shape"]) for name, part in header.items()} == {
        "int4_scales": ("F32", [3]),
        "int4": ("U8", [5]),
    }
    assert data_of(body)[:12] == floats(1.0, 0.0, 2.0).tobytes()
    assert data_of(body)[12:] == bytes([0x7F, 0x10, 0x00, 0x92, 0x10])
    seen = codec.decode(message, body)
    assert {k: x.tolist() for k, x in seen.items()} == {"w.b": [[7, -1, 1], [0, 0, 0]], "w.a": [-14, 4, 2]}
    assert codec.Codec(message).read(body, ["w.a"])["w.a"].tolist() == [-14, 4, 2]


def test_every_pair_of_levels_survives() -> None:
    levels = np.arange(-7, 8, dtype=np.float32)
    pairs = np.stack(np.meshgrid(levels, levels), axis=-1).reshape(1, -1)  # (1, 450), with a scale of 1
    field = {"x": Field(pairs.shape, INT4)}
    assert np.array_equal(codec.decode(field, codec.encode(field, {"x": pairs}))["x"], pairs)


def test_a_weight_takes_half_a_byte() -> None:
    def size(width: int, rows: int = 20) -> int:
        return codec.encoded_size({"w": Field((rows, width), INT4)})

    assert size(3000) - size(2000) == 20 * 1000 / 2
    assert size(2000, 21) - size(2000, 20) == 2000 / 2 + 4  # and a row four bytes more


@pytest.mark.parametrize(
    ("packed", "scales", "code", "said"),
    [
        ([0x81, 0x10], [1.0], "out-of-bounds", r"'x' at \(0,\) is -8; levels run from -7 to 7"),
        ([0x18, 0x10], [1.0], "out-of-bounds", r"'x' at \(1,\) is -8; levels run from -7 to 7"),
        (
            [0x11, 0x11],
            [1.0],
            "padding",
            "'int4' has more than its 3 values; the bits that fill",
        ),
        ([0x11, 0x18], [1.0], "padding", "'int4' has more than its 3 values"),
        ([0x11, 0x10], [np.nan], "bad-scale", r"'int4_scales' at \(0,\) is nan; a scale is not negative and 7 times"),
        ([0x11, 0x10], [np.inf], "bad-scale", r"'int4_scales' at \(0,\) is inf"),
        ([0x11, 0x10], [1e38], "bad-scale", r"'int4_scales' at \(0,\) is 1e\+38"),
        ([0x11, 0x10], [-1.0], "bad-scale", r"'int4_scales' at \(0,\) is -1.0"),
        ([0x00, 0x00], [-0.0], "bad-scale", r"'int4_scales' at \(0,\) is -0.0"),
        ([0x00, 0x00], [1.0], "bad-scale", r"'int4_scales' at \(0,\) is 1.0; the scale of a row is 0 if all"),
        ([0x00, 0x10], [0.0], "bad-scale", r"'int4_scales' at \(0,\) is 0.0; the scale of a row is 0 if all"),
    ],
)
def test_forged_bodies_are_refused(packed: list[int], scales: list[float], code: str, said: str) -> None:
    message = {"x": Field((3,), INT4)}
    body = codec.encode(message, {"x": floats(7, 1, -7)})
    forged = body[: len(body) - len(data_of(body))] + floats(*scales).tobytes() + bytes(packed)
    assert len(forged) == len(body)
    with pytest.raises(WireError, match=said) as caught:
        codec.decode(message, forged)
    assert caught.value.code == code


def test_bound_of_one_side_allows_half_a_step_and_the_other_side_none() -> None:
    """The step is 1, so 0.51 becomes 1, beyond its bound; no value rounds to more than the largest magnitude."""
    message = {"x": Field((2,), INT4, low=-7, high=0.51)}
    body = codec.encode(message, {"x": floats(-7, 0.51)})
    assert codec.decode(message, body)["x"].tolist() == [-7, 1]
    beyond = codec.encode({"x": Field((2,), INT4)}, {"x": floats(-7.1, 0.51)})
    with pytest.raises(WireError, match=r"'x' at \(0,\) is -7.1\d*; allowed is -7 to 0.51, plus the rounding of int4"):
        codec.decode(message, beyond)


@pytest.mark.parametrize("shape", [(64,), (5, 13), (3, 4, 5), (2, 1)], ids=str)
def test_sent_again_it_stays_the_same(shape: tuple[int, ...]) -> None:
    """A member encodes what it has quantized before, and the relay stores what it decoded: no bit may change."""
    random = np.random.default_rng(0)
    for magnitude in 10.0 ** random.uniform(-30, 30, 300):
        once = INT4.quantize((magnitude * random.standard_normal(shape)).astype(np.float32))
        message = {"x": Field(shape, INT4)}
        assert INT4.quantize(once).tobytes() == once.tobytes()
        assert codec.decode(message, codec.encode(message, {"x": once}))["x"].tobytes() == once.tobytes()


def test_vmap_torch_and_the_wire_agree_to_the_bit() -> None:
    x = np.random.default_rng(1).standard_normal((4, 3, 7, 5)).astype(np.float32)  # (learners, entries, rows, width)
    x[1, 2] = 0.0
    for encoding in (INT4, INT4.stacked()):
        together = vmap(encoding.quantize)(torch.from_numpy(x)).numpy()
        message = {"x": Field(x.shape[1:], encoding)}
        for one, own in zip(together, x, strict=True):
            assert one.tobytes() == encoding.quantize(own).tobytes()
            assert one.tobytes() == codec.decode(message, codec.encode(message, {"x": own}))["x"].tobytes()


def test_entries_of_a_pool_have_their_own_scales() -> None:
    entries = floats([[7.0, 1.0], [70.0, 10.0]], [[0.7, 0.1], [0.0, 0.0]])
    levels, scale = INT4.stacked().levels(entries)
    np.testing.assert_allclose(scale, [1.0, 10.0, 0.1, 0.0], rtol=1e-6)
    assert levels.tolist() == [[7, 1], [7, 1], [7, 1], [0, 0]]
