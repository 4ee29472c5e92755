"""Checks of the values in a message: finite, within the bounds of their field, and with valid scales."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from consilience.errors import WireError
from consilience.wire.encodings import Bit, RowScaled
from consilience.wire.schema import Field

Values = np.ndarray[Any, Any]
Bounds = tuple[float, float]
TINY = float(np.finfo(np.float32).tiny)
"""Below this, float32 itself is coarse, and bounds are not checked exactly."""
_LARGEST = float(np.finfo(np.float32).max)


def refuse_first(name: str, x: Values, bad: Values, why: str, code: str) -> None:
    """Refuse a tensor for its first value where `bad` is true, naming the value and its index."""
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), x.shape)
        raise WireError(f"tensor {name!r} at {tuple(map(int, place))} is {x[place]!s}; {why}", code=code, field=name)


def is_within(x: Values, low: float, high: float) -> bool:
    """Whether all values are within finite bounds; false for NaN, of which min and max are NaN."""
    return not x.size or bool(x.min() >= low and x.max() <= high)


def as_int32(name: str, tensor: Values) -> Values:
    """A tensor of counts as int32; refuses values that are not 32-bit integers."""
    if tensor.dtype != np.int32:
        wide, why = tensor.astype(np.float64), "a 32-bit integer is needed"
        refuse_first(name, tensor, ~np.isfinite(wide), why, "not-finite")
        refuse_first(name, tensor, (wide < -(2**31)) | (wide >= 2**31), why, "out-of-bounds")
        refuse_first(name, tensor, wide != np.trunc(wide), why, "wrong-type")
    return np.asarray(tensor, dtype=np.int32)


def bounds_sent(field: Field) -> Bounds:
    """Bounds in the precision of the values they are compared with: float32(0.1) must not be outside 0.1."""
    if field.encoding.name == "int32":
        return field.low, field.high
    with np.errstate(over="ignore"):
        return float(np.float32(field.low)), float(np.float32(field.high))


def bounds_received(field: Field) -> Bounds:
    """What values at the bounds become when they are encoded; the steps of levels are added by the codec."""
    if isinstance(field.encoding, Bit):
        return _bit_bounds(field)
    if isinstance(field.encoding, RowScaled) or field.encoding.name == "int32":
        return bounds_sent(field)
    # rounding keeps the order, so values within the bounds stay within the rounded bounds
    low, high = map(float, field.encoding.quantize(np.asarray(bounds_sent(field), dtype=np.float32)))
    return low, high


def _bit_bounds(field: Field) -> Bounds:
    """What signs times a mean magnitude can become: if 0 is within the bounds, the wider one counts on both sides."""
    unit = cast(Bit, field.encoding).unit
    low, high = bounds_sent(field)
    reach = max(abs(low), abs(high)) if unit is None else abs(unit)
    low = -reach if low < 0 else min(low, reach)
    high = reach if high >= 0 else max(high, -reach)
    return low - 1e-5 * abs(low) - TINY, high + 1e-5 * abs(high) + TINY  # a mean of equal values may be rounded up


def finite(bounds: Bounds) -> Bounds:
    """The same bounds within the range of float32."""
    return max(bounds[0], -_LARGEST), min(bounds[1], _LARGEST)


def check_scales(name: str, scales: Values, steps: int) -> None:
    """Refuse negative scales, and those of which `steps` steps are beyond float32."""
    bad = ~np.isfinite(scales * np.float32(steps)) | np.signbit(scales)
    refuse_first(name, scales, bad, f"a scale is not negative and {steps} times it is a finite float32", "bad-scale")
