"""Tensors to bytes and back; a body that does not match its schema is refused by name.

The schema alone fixes the header of a body (`layout`), so a body has one possible length and is refused before its
values are read. A refusal has one of `layout.CODES`, and in `field` the tensor at fault, by its name in the message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import cast

import numpy as np

from consilience.errors import WireError
from consilience.wire.encodings import Bit, Byte, RowScaled
from consilience.wire.layout import (
    CODES,
    SCALE,
    TYPES,
    bit_fields,
    check_header,
    check_names,
    encode_header,
    names_in_body,
    nibble_fields,
    stored_layout,
    units_fixed,
)
from consilience.wire.nibbles import Nibbles
from consilience.wire.schema import Field, Message
from consilience.wire.value_check import (
    TINY,
    Bounds,
    Values,
    as_int32,
    bounds_received,
    bounds_sent,
    check_scales,
    finite,
    is_within,
    refuse_first,
)

__all__ = ["CODES", "Codec", "decode", "encode", "encoded_size"]

Body = bytes | bytearray | memoryview


def encoded_size(message: Message) -> int:
    """The exact length of an encoded body, from the schema alone."""
    return Codec(message).size


def encode(message: Message, tensors: Mapping[str, Values]) -> bytes:
    """The body with these tensors, which must be exactly those that `message` declares.

    Numbers are converted to float32 first, so the receiver of float32 arrays gets exactly what `quantize` gives.
    """
    return Codec(message).encode(tensors)


def decode(message: Message, body: Body) -> dict[str, Values]:
    """The tensors of `message` as the sender's `quantize` left them; refuses the entire body if one is invalid."""
    return Codec(message).decode(bytearray(body))  # a copy, so that the arrays are writable


class Codec:
    """Encodes and decodes the bodies of one message; its layout is computed once, and using it changes nothing.

    size: the exact length of an encoded body, from the schema alone.
    """

    def __init__(self, message: Message) -> None:
        self.message = dict(message)
        self._names = names_in_body(message)
        self._layout = stored_layout(message, self._names)
        self._header = encode_header(self._layout, self._names)
        self._parts = {
            name: (tuple(part["shape"]), TYPES[part["dtype"]], len(self._header) + part["data_offsets"][0])
            for name, part in self._layout.items()
        }
        self.size = len(self._header) + max((part["data_offsets"][1] for part in self._layout.values()), default=0)
        self._nibbles = Nibbles(nibble_fields(message))
        self._bits = bit_fields(message)
        self._scaled = not units_fixed(self._bits)
        units = [cast(Bit, field.encoding).unit for field in self._bits.values()]
        self._units = np.asarray(units, dtype=np.float32)  # NaN for tensors without a fixed unit

    @cached_property
    def _sent(self) -> dict[str, Bounds]:
        return {name: finite(bounds_sent(field)) for name, field in self.message.items()}

    @cached_property
    def _received(self) -> dict[str, Bounds]:
        return {name: finite(bounds_received(field)) for name, field in self.message.items()}

    def encode(self, tensors: Mapping[str, Values]) -> bytes:
        """The body with these tensors, which must be exactly those that the message declares."""
        if tensors.keys() != self.message.keys():
            check_names(tensors, self.message)
        stored: dict[str, Values] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # such values are refused below
            arrays = {name: self._checked(name, tensors[name]) for name in self.message}
            for name, field in self.message.items():
                if name not in self._bits and name not in self._nibbles.fields:
                    stored |= _write(name, field, arrays[name])
            stored |= self._nibbles.write(arrays) | self._write_bits(arrays)
        data = [stored[name].astype(dtype, copy=False).tobytes() for name, (_, dtype, _) in self._parts.items()]
        return b"".join([self._header, *data])

    def decode(self, body: Body, only: Collection[str] | None = None) -> dict[str, Values]:
        """The tensors as the sender's `quantize` left them; refuses the entire body if one is invalid.

        only: return just these; all are checked. Arrays may be views of the body, which stays in memory with them, and
        are read-only if it is `bytes`.
        """
        if len(body) != self.size:
            why = f"a body of {len(body)} bytes was received; this message takes exactly {self.size}"
            raise WireError(why, code="wrong-length")
        if body[: len(self._header)] != self._header:
            check_header(self._layout, self._names, bytes(body), len(self._header) - 8)
        with np.errstate(over="ignore", invalid="ignore"):  # such values are refused below
            self._check_stored(body)
            tensors, valid = self.read(body), self._within_bounds(body)
            for name, x in tensors.items():
                if name not in valid and not is_within(x, *self._received[name]):
                    self._refuse_received(name, x, body)
        return tensors if only is None else {name: x for name, x in tensors.items() if name in only}

    def read(self, body: Body, only: Collection[str] | None = None) -> dict[str, Values]:
        """The tensors of a body that `decode` accepted before: nothing is checked again."""
        wanted = [name for name in self.message if only is None or name in only]
        packed = {} if self._bits.keys().isdisjoint(wanted) else self._read_bits(body)
        if not self._nibbles.fields.keys().isdisjoint(wanted):
            packed |= self._nibbles.read(self._part("int4", body), self._part("int4_scales", body))
        return {name: packed[name] if name in packed else self._read_tensor(name, body) for name in wanted}

    def _part(self, name: str, body: Body) -> Values:
        """A stored tensor, as a view of the body."""
        shape, dtype, at = self._parts[name]
        return np.ndarray(shape, dtype, body, at)

    # Encoding

    def _checked(self, name: str, tensor: Values) -> Values:
        """A tensor to be sent, checked, as float32 or int32."""
        field = self.message[name]
        if not isinstance(tensor, np.ndarray | np.generic) or tensor.dtype.kind not in "iuf":
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            why = f"tensor {name!r} has type {kind}; a NumPy array of real numbers is needed"
            raise WireError(why, code="wrong-type", field=name)
        if tensor.shape != field.shape:
            why = f"tensor {name!r} has shape {tensor.shape}; the schema needs {field.shape}"
            raise WireError(why, code="wrong-layout", field=name)
        x = as_int32(name, tensor) if field.encoding.name == "int32" else np.asarray(tensor, dtype=np.float32)
        low, high = self._sent[name]
        if not is_within(x, low, high):
            refuse_first(name, tensor, ~np.isfinite(x), "a finite float32 is needed", "not-finite")
            refuse_first(name, x, (x < low) | (x > high), f"allowed is {field.low} to {field.high}", "out-of-bounds")
        return x

    def _write_bits(self, arrays: Mapping[str, Values]) -> dict[str, Values]:
        """All 1-bit tensors in one packed tensor, in the order of the message."""
        if not self._bits:
            return {}
        packed = np.packbits(np.concatenate([arrays[name].ravel() >= 0 for name in self._bits]))
        means = [cast(Bit, field.encoding).scale(arrays[name]) for name, field in self._bits.items()]
        scales = np.asarray(means, dtype=np.float32)
        check_scales("scales", scales, 1)
        return {"bits": packed, "scales": scales} if self._scaled else {"bits": packed}

    # Decoding

    def _check_stored(self, body: Body) -> None:
        """Refuse invalid bits, levels and scales before values are computed from them."""
        if self._bits:
            self._check_padding(self._part("bits", body))
            scales, fixed = self._scales(body), self._units
            check_scales("scales", scales, 1)
            units = [cast(Bit, field.encoding).unit for field in self._bits.values()]
            refuse_first(
                "scales", scales, ~np.isnan(fixed) & (scales != fixed), f"the schema fixes {units}", "bad-scale"
            )
        if self._nibbles.fields:
            self._nibbles.check(self._part("int4", body), self._part("int4_scales", body))
        for name, field in self.message.items():
            if isinstance(field.encoding, Byte):
                levels = self._part(name, body)
                refuse_first(name, levels, levels == -128, "levels run from -127 to 127", "out-of-bounds")
                check_scales(f"{name}{SCALE}", self._part(f"{name}{SCALE}", body), 127)

    def _check_padding(self, packed: Values) -> None:
        total = sum(field.size for field in self._bits.values())
        if total % 8 and packed[-1] & (0xFF >> total % 8):
            why = f"tensor 'bits' has more than its {total} values; the bits that fill its last byte must be 0"
            raise WireError(why, code="padding", field="bits")

    def _within_bounds(self, body: Body) -> set[str]:
        """1-bit tensors whose scale is within the bounds with either sign: their values need no check."""
        scales = zip(self._bits, self._scales(body).tolist(), strict=True)
        return {name for name, scale in scales if self._received[name][0] <= -scale <= scale <= self._received[name][1]}

    def _refuse_received(self, name: str, x: Values, body: Body) -> None:
        """Refuse values that cannot come from values within the bounds, even with the rounding of their encoding."""
        low, high = self._received[name]
        field, slack, reach = self.message[name], np.zeros(()), np.inf
        if isinstance(field.encoding, RowScaled):
            # Half a step and a little: of the step received, but at most the widest step that the bounds allow.
            scale = self._row_scales(name, body).astype(np.float64)
            steps = np.repeat(scale, field.size // len(scale)).reshape(field.shape)
            widest = max(abs(low), abs(high))
            slack = 0.51 * np.minimum(steps, widest / field.encoding.top) + TINY
            # The largest value of a row, which sets its scale, is not rounded, and none is rounded to more than it.
            reach = widest * (1 + 1e-6) + TINY
        rounding = f", plus the rounding of {field.encoding.name}" if field.encoding.lossy else ""
        refuse_first(name, x, ~np.isfinite(x), "a finite number is needed", "not-finite")
        outside = (x < low - slack) | (x > high + slack) | (np.abs(x) > reach)
        refuse_first(name, x, outside, f"allowed is {field.low} to {field.high}{rounding}", "out-of-bounds")

    def _read_tensor(self, name: str, body: Body) -> Values:
        """A tensor that is not packed with others."""
        field = self.message[name]
        x = self._part(name, body)
        if isinstance(field.encoding, Byte):
            scale = self._part(f"{name}{SCALE}", body)[:, None]  # (rows, 1), each for the width of its row
            rows = x.reshape(len(scale), field.size // max(len(scale), 1))
            return (rows.astype(np.float32) * scale).reshape(field.shape)
        return x.astype(np.float32) if x.dtype == np.float16 else x

    def _row_scales(self, name: str, body: Body) -> Values:
        """The scales of the rows of an 8-bit or a 4-bit tensor."""
        if name in self._nibbles.fields:
            return self._nibbles.scales_of(name, self._part("int4_scales", body))
        return self._part(f"{name}{SCALE}", body)

    def _read_bits(self, body: Body) -> dict[str, Values]:
        """All 1-bit tensors: the scale of each, with the sign bit of the float32 set where the stored bit is 0."""
        values = np.unpackbits(~self._part("bits", body)).astype(np.uint32)
        values <<= 31
        tensors, end = {}, 0
        for (name, field), scale in zip(self._bits.items(), self._scales(body).view(np.uint32), strict=True):
            start, end = end, end + field.size
            own = values[start:end]
            own |= scale
            tensors[name] = own.view(np.float32).reshape(field.shape)
        return tensors

    def _scales(self, body: Body) -> Values:
        """One scale for each 1-bit tensor, received or fixed by the schema."""
        return self._part("scales", body) if self._scaled else self._units


def _write(name: str, field: Field, x: Values) -> dict[str, Values]:
    """The stored form of a tensor that is not packed with others."""
    encoding = field.encoding
    if isinstance(encoding, Byte):
        levels, scale = encoding.levels(x)
        check_scales(f"{name}{SCALE}", scale, 127)
        return {name: levels, f"{name}{SCALE}": scale}
    return {name: np.asarray(encoding.quantize(x))}
