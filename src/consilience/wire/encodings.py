"""How a tensor becomes bytes: what each encoding keeps of a value, and what it costs.

`quantize` is what the far side will see: exactly what decoding the encoded bytes gives. The simulator calls it on
arrays and makes no bytes; `wire` makes the bytes. Both work on any array of the array-API standard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import array_namespace

Array = Any
"""An array of the array-API standard: NumPy's in the relay, torch's in a simulation."""


@dataclass(frozen=True)
class Encoding:
    """One way to write a value down.

    `feedback` says that a sender keeps its rounding error and adds it next time.
    """

    name: str
    bits: int
    lossy: bool = True

    @property
    def feedback(self) -> bool:
        """Only coarse encodings are worth an error memory the size of the tensor."""
        return self.bits <= 8

    def quantize(self, x: Array) -> Array:
        """What the far side will see of `x`."""
        raise NotImplementedError

    def stacked(self) -> Encoding:
        """The same for several tensors laid on top of each other, entries of a pool."""
        return self


@dataclass(frozen=True)
class Exact(Encoding):
    """Values as they are: float32 for numbers, int32 for counts."""

    name: str = "float32"
    bits: int = 32
    lossy: bool = False

    def quantize(self, x: Array) -> Array:
        """What the far side will see of `x`."""
        return x


@dataclass(frozen=True)
class Half(Encoding):
    """Sixteen-bit floats; what is beyond their range is held at its edge."""

    name: str = "float16"
    bits: int = 16

    def quantize(self, x: Array) -> Array:
        """What the far side will see of `x`."""
        xp = array_namespace(x)
        return xp.astype(xp.astype(xp.clip(x, -65504.0, 65504.0), xp.float16), x.dtype)


@dataclass(frozen=True)
class Byte(Encoding):
    """Eight bits a value, in 255 equal steps, and one scale for each row (of the first `axes` axes)."""

    name: str = "int8"
    bits: int = 8
    axes: int = 1

    def stacked(self) -> Byte:
        """Every entry keeps a scale for each of its rows."""
        return replace(self, axes=self.axes + 1)

    def levels(self, x: Array) -> tuple[Array, Array]:
        """Whole numbers from -127 to 127, (rows, rest), and the scale of each row, (rows,)."""
        xp = array_namespace(x)
        width = math.prod(x.shape[max(min(self.axes, x.ndim - 1), 0) :])
        rows = xp.reshape(x, (self.rows(tuple(x.shape)), width))
        largest = xp.max if width else xp.sum  # of no values there is no largest, but a sum, and it is 0
        scale = largest(xp.abs(rows), axis=1) / 127.0  # (rows,)
        safe = xp.where(scale > 0, scale, xp.ones_like(scale))
        levels = xp.clip(xp.round(rows / safe[:, None]), -127.0, 127.0)
        return levels + 0.0, scale  # + 0.0 turns -0 into 0: whole numbers on the wire have only one zero

    def quantize(self, x: Array) -> Array:
        """What the far side will see of `x`."""
        xp = array_namespace(x)
        levels, scale = self.levels(x)
        return xp.reshape(levels * scale[:, None], x.shape)

    def rows(self, shape: tuple[int, ...]) -> int:
        """How many scales a tensor of this shape carries; a vector is one row."""
        return math.prod(shape[: max(min(self.axes, len(shape) - 1), 0)])


@dataclass(frozen=True)
class Bit(Encoding):
    """One bit a value: its sign (the sign of 0 is +), and one scale for the tensor.

    The scale is the mean magnitude, or `unit` where one is given: with a fixed unit a mean of signs is a vote.
    """

    name: str = "bit"
    bits: int = 1
    unit: float | None = None

    @property
    def feedback(self) -> bool:
        """A vote has no memory."""
        return self.unit is None

    def scale(self, x: Array) -> Array:
        """The one scale of a tensor, a scalar array; summed in float64, where NumPy and torch agree."""
        xp = array_namespace(x)
        total = xp.sum(xp.abs(x), dtype=xp.float64)
        mean = xp.astype(total / max(math.prod(x.shape), 1), x.dtype)
        return mean if self.unit is None else xp.full_like(mean, self.unit)

    def quantize(self, x: Array) -> Array:
        """What the far side will see of `x`."""
        xp = array_namespace(x)
        scale = self.scale(x)
        return xp.where(x >= 0, scale, xp.where(x < 0, -scale, x))  # what is no number stays so, and is noticed


FLOAT32 = Exact()
FLOAT16 = Half()
INT8 = Byte()
BIT = Bit()
INT32 = Exact(name="int32")
"""Counts: whole numbers, exact."""


def is_vote(encoding: Encoding) -> bool:
    """Whether an encoding leaves of a value only whether it is up or down."""
    return isinstance(encoding, Bit) and encoding.unit is not None


def encoding_name(encoding: Encoding) -> str:
    """An encoding in writing: its name, and of a vote its unit.

    >>> spelled(INT8), spelled(Bit(unit=0.001))
    ('int8', 'bit(0.001)')
    """
    return f"bit({encoding.unit!r})" if isinstance(encoding, Bit) and encoding.unit is not None else encoding.name


ENCODINGS: dict[str, Encoding] = {e.name: e for e in (FLOAT32, FLOAT16, INT8, BIT, INT32)}
