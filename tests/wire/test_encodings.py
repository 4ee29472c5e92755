"""Values after each encoding, by hand, and equal in NumPy and torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.wire.encodings import BIT, ENCODINGS, FLOAT16, FLOAT32, INT4, INT8, INT32, Bit, Encoding, encoding_name

Values = np.ndarray[Any, Any]


def floats(*values: Any) -> Values:
    return np.asarray(values, dtype=np.float32)


def test_exact_encodings_do_not_change_values() -> None:
    x = floats(0.1, -3.5)
    assert FLOAT32.quantize(x) is x
    assert INT32.quantize(x) is x


def test_float16_rounds_to_ten_bits_and_stays_finite() -> None:
    seen = FLOAT16.quantize(floats(1.0, 1 + 2**-11, 1 + 3 * 2**-11, 1e6, -1e6))
    assert seen.dtype == np.float32
    assert seen.tolist() == [1.0, 1.0, 1 + 2**-9, 65504.0, -65504.0]


def test_int8_has_one_scale_for_each_row() -> None:
    levels, scale = INT8.levels(floats([127.0, -64.0, 0.5], [0.0, 0.0, 0.0], [-254.0, 1.0, 3.0]))
    assert scale.tolist() == [1.0, 0.0, 2.0]
    assert levels.tolist() == [[127, -64, 0], [0, 0, 0], [-127, 0, 2]]  # halves are rounded to even


def test_int8_quantizes_to_levels_times_scale() -> None:
    seen = INT8.quantize(floats([127.0, -64.0, 0.5], [-254.0, 1.0, 3.0]))
    assert seen.tolist() == [[127, -64, 0], [-254, 0, 4]]


def test_int8_treats_a_vector_as_one_row() -> None:
    levels, scale = INT8.levels(floats(127.0, 1.0))
    assert (levels.shape, scale.shape) == ((1, 2), (1,))
    assert [INT8.rows(shape) for shape in [(), (5,), (3, 5), (3, 5, 2)]] == [1, 1, 3, 3]
    assert [INT8.stacked().rows(shape) for shape in [(2, 5), (2, 3, 5), (2, 3, 5, 2)]] == [2, 6, 6]


def test_int8_has_no_negative_zero() -> None:
    """-0 cannot be sent as an integer, so the sender must not use it either."""
    for zero in (INT8.quantize(floats(-0.001, 1.0))[0], INT8.quantize(torch.tensor([-0.001, 1.0]))[0]):
        assert math.copysign(1.0, float(zero)) == 1.0


def test_bit_is_sign_times_mean_magnitude() -> None:
    x = floats([1.0, -2.0], [0.0, 5.0])
    assert float(BIT.scale(x)) == 2.0
    assert BIT.quantize(x).tolist() == [[2.0, -2.0], [2.0, 2.0]]  # the sign of 0 is +
    assert BIT.quantize(floats(-0.0, -4.0)).tolist() == [2.0, -2.0]


def test_bit_with_a_fixed_unit_is_a_vote() -> None:
    vote = Bit(unit=1.0)
    assert vote.quantize(floats(0.25, -7.0, 0.0)).tolist() == [1.0, -1.0, 1.0]
    votes = [vote.quantize(floats(*v)) for v in ([3.0, -1.0], [0.1, -9.0], [-8.0, 0.0])]
    assert np.sign(sum(votes)).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("encoding", [FLOAT32, FLOAT16, INT8, INT4, BIT, Bit(unit=0.5)], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 0, 4)], ids=str)
def test_scalars_and_empty_tensors_keep_their_shape(encoding: Encoding, shape: tuple[int, ...]) -> None:
    for x in (np.ones(shape, dtype=np.float32), torch.ones(shape)):
        seen = encoding.quantize(x)
        assert tuple(seen.shape) == shape
        assert seen.dtype == x.dtype
        assert np.isfinite(np.asarray(seen)).all()


def test_scale_of_an_empty_tensor_is_zero() -> None:
    assert float(BIT.scale(np.zeros((0, 3), dtype=np.float32))) == 0.0
    assert INT8.levels(np.zeros((3, 0), dtype=np.float32))[1].tolist() == [0.0, 0.0, 0.0]


def test_names_and_kinds_of_encodings() -> None:
    assert {name: e.bits for name, e in ENCODINGS.items()} == {
        "float32": 32,
        "int32": 32,
        "float16": 16,
        "int8": 8,
        "int4": 4,
        "bit": 1,
    }
    assert [e.name for e in ENCODINGS.values() if e.feedback] == ["int8", "int4", "bit"]
    assert [e.name for e in ENCODINGS.values() if not e.lossy] == ["float32", "int32"]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60))
def test_numpy_and_torch_quantize_equally(values: list[float]) -> None:
    x = floats(*values).reshape(-1, 1 + (len(values) % 2 == 0))
    for encoding in (FLOAT32, FLOAT16, INT8, INT4, Bit(unit=0.3)):
        assert encoding.quantize(x).tobytes() == encoding.quantize(torch.from_numpy(x)).numpy().tobytes()
    # the libraries add in different orders, so a mean may differ in its last bits
    np.testing.assert_allclose(BIT.quantize(x), BIT.quantize(torch.from_numpy(x)).numpy(), rtol=1e-6)


def test_mean_of_many_values_agrees_between_numpy_and_torch() -> None:
    x = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    here, there = float(BIT.scale(x)), float(BIT.scale(torch.from_numpy(x)))
    exact = float(np.abs(x.astype(np.float64)).mean())
    assert here == pytest.approx(there, rel=1e-6)
    assert here == pytest.approx(exact, rel=1e-6)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
def test_quantization_errors_stay_within_the_documented_bounds(values: list[float]) -> None:
    x = floats(*values)
    tiny = 1e-37
    assert (np.abs(FLOAT16.quantize(x) - np.clip(x, -65504, 65504)) <= np.abs(x) * 2**-11 + 2**-25).all()
    assert (np.abs(INT8.quantize(x) - x) <= 0.5001 * np.abs(x).max() / 127 + tiny).all()
    assert (np.abs(INT4.quantize(x) - x) <= 0.5001 * np.abs(x).max() / 7 + tiny).all()
    assert ((BIT.quantize(x) >= 0) == (x >= 0)).all() or float(BIT.scale(x)) == 0.0


def test_votes_have_no_error_feedback_and_scaled_encodings_do() -> None:
    assert BIT.feedback and INT4.feedback and INT8.feedback
    assert not Bit(unit=1.0).feedback and not FLOAT16.feedback and not FLOAT32.feedback


def test_name_of_a_vote_contains_its_unit() -> None:
    assert [encoding_name(each) for each in (FLOAT16, BIT, Bit(unit=0.001))] == ["float16", "bit", "bit(0.001)"]
