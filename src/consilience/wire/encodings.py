"""How a tensor becomes bytes: the precision and the size of each encoding.

`quantize` gives what the receiver gets: exactly what decoding the encoded bytes gives. The simulator calls it on arrays
and makes no bytes; `codec` makes the bytes. Both work on any array of the array-API standard.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

Array = Any
"""An array of the array-API standard: NumPy's in the relay, torch's in a simulation."""
WITHOUT_FLOAT64 = {"mps"}
"""Kinds of torch's devices that cannot compute in float64."""


@dataclass(frozen=True)
class Encoding:
    """One way to encode values.

    feedback: whether a sender adds its rounding error to the next message (error feedback).
    """

    name: str
    bits: int
    lossy: bool = True

    @property
    def feedback(self) -> bool:
        """Only coarse encodings are worth a residual of the size of the tensor."""
        return self.bits <= 8

    def quantize(self, x: Array) -> Array:
        """What the receiver gets for `x`."""
        raise NotImplementedError

    def stacked(self) -> Encoding:
        """The same encoding for a stack of tensors: the entries of a pool."""
        return self


@dataclass(frozen=True)
class Exact(Encoding):
    """Exact values: float32 for numbers, int32 for counts."""

    name: str = "float32"
    bits: int = 32
    lossy: bool = False

    def quantize(self, x: Array) -> Array:
        """What the receiver gets for `x`."""
        return x


@dataclass(frozen=True)
class Half(Encoding):
    """16-bit floats; values beyond their range are clipped to it."""

    name: str = "float16"
    bits: int = 16

    def quantize(self, x: Array) -> Array:
        """What the receiver gets for `x`."""
        xp = array_namespace(x)
        return xp.astype(xp.astype(xp.clip(x, -65504.0, 65504.0), xp.float16), x.dtype)


@dataclass(frozen=True)
class RowScaled(Encoding):
    """Integer levels in equal steps, and one scale per row (of the first `axes` axes), in float32."""

    axes: int = 1

    @property
    def top(self) -> int:
        """The largest level; the smallest is its negative."""
        return int(2 ** (self.bits - 1)) - 1

    def stacked(self) -> RowScaled:
        """Every entry has a scale for each of its rows."""
        return replace(self, axes=self.axes + 1)

    def levels(self, x: Array) -> tuple[Array, Array]:
        """Integers from -top to top, (rows, rest), and the scale of each row, (rows,)."""
        xp = array_namespace(x)
        width = math.prod(x.shape[max(min(self.axes, x.ndim - 1), 0) :])
        rows = xp.reshape(x, (self.rows(tuple(x.shape)), width))
        largest = (xp.max if width else xp.sum)(xp.abs(rows), axis=1)  # an empty row has no largest value; its sum is 0
        # By an array: by a number, torch on a GPU would multiply by 1 / number, which rounds differently.
        scale = largest / xp.full_like(largest, float(self.top))  # (rows,)
        safe = xp.where(scale > 0, scale, xp.ones_like(scale))
        levels = xp.clip(xp.round(rows / safe[:, None]), -float(self.top), float(self.top))
        return levels + 0.0, scale  # + 0.0 turns -0 into 0: encoded integers have only one zero

    def quantize(self, x: Array) -> Array:
        """What the receiver gets for `x`."""
        xp = array_namespace(x)
        levels, scale = self.levels(x)
        return xp.reshape(levels * scale[:, None], x.shape)

    def rows(self, shape: tuple[int, ...]) -> int:
        """The number of scales of a tensor of this shape; a vector is one row."""
        return math.prod(shape[: max(min(self.axes, len(shape) - 1), 0)])


@dataclass(frozen=True)
class Byte(RowScaled):
    """Eight bits per value: 255 levels, from -127 to 127."""

    name: str = "int8"
    bits: int = 8


@dataclass(frozen=True)
class Nibble(RowScaled):
    """Four bits per value: 15 levels, from -7 to 7, packed two to a byte.

    One scale per row, as in `Byte`. Scales of shorter blocks round less but take bits of their own, and one bit per
    value more halves the error anyway. Rounding errors relative to the changes of a common model in FedAvg: LeNet5 on
    MNIST 10.4 % with 4.25 bits per value, 9.2 % with 4.63 bits in blocks of 64 values (where 0.38 bits more should give
    8.0 %), 18.2 % with 4.01 bits and one scale per tensor; ResNet9 on Fashion-MNIST 11.1, 9.4 and 12.2 % with 4.02,
    4.50 and 4.00 bits. If members upload one bit per value, all three round alike: 5.4 and 8.1 %. Scales are float32,
    since float16 is coarse below 6e-5, where steps of small changes lie.
    """

    name: str = "int4"
    bits: int = 4


@dataclass(frozen=True)
class Bit(Encoding):
    """One bit per value: its sign (the sign of 0 is +), and one scale for the tensor.

    The scale is the mean magnitude, or `unit` if one is given: with a fixed unit a mean of signs is a vote.
    """

    name: str = "bit"
    bits: int = 1
    unit: float | None = None

    @property
    def feedback(self) -> bool:
        """A vote has no residual."""
        return self.unit is None

    def scale(self, x: Array) -> Array:
        """The scale of a tensor, a scalar array; summed in float64, in which NumPy and torch agree."""
        xp = array_namespace(x)
        single = getattr(device(x), "type", "") in WITHOUT_FLOAT64
        total = xp.sum(xp.abs(x), dtype=xp.float32 if single else xp.float64)
        mean = xp.astype(total / max(math.prod(x.shape), 1), x.dtype)
        return mean if self.unit is None else xp.full_like(mean, self.unit)

    def quantize(self, x: Array) -> Array:
        """What the receiver gets for `x`."""
        xp = array_namespace(x)
        scale = self.scale(x)
        return xp.where(x >= 0, scale, xp.where(x < 0, -scale, x))  # NaN stays NaN, and is noticed


FLOAT32 = Exact()
FLOAT16 = Half()
INT8 = Byte()
INT4 = Nibble()
BIT = Bit()
INT32 = Exact(name="int32")
"""Counts: exact integers."""


def is_vote(encoding: Encoding) -> bool:
    """Whether an encoding keeps only the sign of a value, with a fixed unit."""
    return isinstance(encoding, Bit) and encoding.unit is not None


def encoding_name(encoding: Encoding) -> str:
    """The name of an encoding as a charter writes it, with the unit of a vote.

    >>> encoding_name(INT8), encoding_name(Bit(unit=0.001))
    ('int8', 'bit(0.001)')
    """
    return f"bit({encoding.unit!r})" if isinstance(encoding, Bit) and encoding.unit is not None else encoding.name


ENCODINGS: dict[str, Encoding] = {e.name: e for e in (FLOAT32, FLOAT16, INT8, INT4, BIT, INT32)}
_BIT = re.compile(r"bit\((.+)\)")
_FLOAT32 = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)  # a unit is sent as float32


def parse_encoding(text: str) -> Encoding:
    """The encoding that `encoding_name` names; not int32, which only counts have."""
    if text in ENCODINGS and text != "int32":
        return ENCODINGS[text]
    vote = _BIT.fullmatch(text)
    try:
        unit = float(vote[1]) if vote else math.nan
    except ValueError:
        unit = math.nan
    if not _FLOAT32[0] <= unit <= _FLOAT32[1]:
        raise ValueError(f"encoding {text[:80]!r} is unknown; known: float32, float16, int8, int4, bit, bit(UNIT)")
    return Bit(unit=unit)
