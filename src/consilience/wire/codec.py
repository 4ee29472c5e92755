"""Tensors to bytes and back, and how many bytes that will be; what breaks the schema is refused by name.

A body is a safetensors file without metadata. All 1-bit tensors of a message share one packed tensor, `bits`, and
one of `scales` (left out where every unit is fixed); an 8-bit tensor has its scales beside it in `NAME.scale`.
The schema alone fixes the header, so a body has one possible length and is judged before a value is looked at.
A refusal carries one of `CODES`, and in `field` the stored tensor at fault.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from consilience.errors import WireError
from consilience.wire.encodings import Bit, Byte
from consilience.wire.schema import Field, Message

__all__ = ["CODES", "Codec", "decode", "encode", "encoded_size"]

CODES = {
    "wrong-length": "the body is not as long as the schema says",
    "malformed-header": "the header is of another length, no JSON object, or nothing safetensors can read",
    "duplicate-name": "a name is there twice, or is one that the message needs for itself",
    "undeclared-name": "a declared tensor is missing, or there is one that nobody declared",
    "wrong-layout": "a tensor has another type, shape or place than the schema says",
    "wrong-type": "what is to be sent is no array of real numbers, or no whole number where a count is",
    "not-finite": "a value is not a number, infinite, or beyond float32",
    "out-of-bounds": "a value is outside the bounds of its field, or of its encoding",
    "bad-scale": "a scale is negative, too large, not a number, or not the one the schema fixes",
    "padding": "the bits that fill the last byte are not all 0",
}
"""What may be wrong with a body, and with tensors to be sent in one."""

Values = np.ndarray[Any, Any]
Body = bytes | bytearray | memoryview
Layout = dict[str, dict[str, Any]]
Limits = tuple[float, float]

_STORED = {"float32": "F32", "int32": "I32", "float16": "F16", "int8": "I8"}
_NUMPY = {"F32": "<f4", "I32": "<i4", "F16": "<f2", "I8": "i1", "U8": "u1"}
_TYPES = {stored: np.dtype(code) for stored, code in _NUMPY.items()}
"""How values lie in a body, in the order in which safetensors lays its tensors out."""
_TINY = float(np.finfo(np.float32).tiny)
"""Below this, single precision itself is coarse, and bounds are not worth a quarrel."""
_LARGEST = float(np.finfo(np.float32).max)
_SHORT = reprlib.Repr()
_SHORT.maxstring = 100


def encoded_size(message: Message) -> int:
    """The exact length of an encoded body, from the schema alone."""
    return Codec(message).size


def encode(message: Message, tensors: Mapping[str, Values]) -> bytes:
    """The body that carries `tensors`: all that `message` declares, and nothing else.

    Numbers are taken in single precision first, so of float32 arrays the far side sees exactly what `quantize` gives.
    """
    return Codec(message).encode(tensors)


def decode(message: Message, body: Body) -> dict[str, Values]:
    """The tensors of `message` as the far side's `quantize` left them, or a refusal of the whole body."""
    return Codec(message).decode(bytearray(body))  # a copy of one's own, so the arrays may be written to


class Codec:
    """One message's way to bytes and back, worked out once for any number of bodies. It is never changed by its use.

    size: the exact length of an encoded body, from the schema alone.
    """

    def __init__(self, message: Message) -> None:
        self.message = dict(message)
        self._layout = _layout(message)
        self._start = _start(self._layout)
        self._parts = {
            name: (tuple(part["shape"]), _TYPES[part["dtype"]], len(self._start) + part["data_offsets"][0])
            for name, part in self._layout.items()
        }
        self.size = len(self._start) + max((part["data_offsets"][1] for part in self._layout.values()), default=0)
        self._bits = _bit_fields(message)
        self._scaled = not _units_fixed(self._bits)
        units = [cast(Bit, field.encoding).unit for field in self._bits.values()]
        self._units = np.asarray(units, dtype=np.float32)  # NaN where there is none

    @cached_property
    def _sent(self) -> dict[str, Limits]:
        return {name: _finite(_bounds(field)) for name, field in self.message.items()}

    @cached_property
    def _received(self) -> dict[str, Limits]:
        return {name: _finite(_bounds_received(field)) for name, field in self.message.items()}

    def encode(self, tensors: Mapping[str, Values]) -> bytes:
        """The body that carries `tensors`: all that the message declares, and nothing else."""
        if tensors.keys() != self.message.keys():
            _same_names(tensors, self.message)
        stored: dict[str, Values] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # what would warn is about to be refused
            arrays = {name: self._checked(name, tensors[name]) for name in self.message}
            for name, field in self.message.items():
                if name not in self._bits:
                    stored |= _write(name, field, arrays[name])
            stored |= self._write_bits(arrays)
        data = [stored[name].astype(dtype, copy=False).tobytes() for name, (_, dtype, _) in self._parts.items()]
        return b"".join([self._start, *data])

    def decode(self, body: Body, only: Collection[str] | None = None) -> dict[str, Values]:
        """The tensors as the far side's `quantize` left them, or a refusal of the whole body.

        With `only`, no more than those are given; all are judged. Arrays may be views of the body, which stays in
        memory with them, and are read-only where it is `bytes`.
        """
        if len(body) != self.size:
            why = f"a body of {len(body)} bytes was received; this message takes exactly {self.size}"
            raise WireError(why, code="wrong-length")
        if body[: len(self._start)] != self._start:
            _check_header(self._layout, bytes(body), len(self._start) - 8)
        with np.errstate(over="ignore", invalid="ignore"):  # what would warn is about to be refused
            self._check_stored(body)
            tensors, settled = self.read(body), self._settled(body)
            for name, x in tensors.items():
                if name not in settled and not _within(x, *self._received[name]):
                    self._refuse_received(name, x, body)
        return tensors if only is None else {name: x for name, x in tensors.items() if name in only}

    def read(self, body: Body, only: Collection[str] | None = None) -> dict[str, Values]:
        """The same of a body that `decode` took before: nothing is judged again."""
        wanted = [name for name in self.message if only is None or name in only]
        signs = {} if self._bits.keys().isdisjoint(wanted) else self._open_bits(body)
        return {name: signs[name] if name in signs else self._open(name, body) for name in wanted}

    def _part(self, name: str, body: Body) -> Values:
        """A stored tensor, as it lies in the body."""
        shape, dtype, at = self._parts[name]
        return np.ndarray(shape, dtype, body, at)

    # Tensors to be sent

    def _checked(self, name: str, tensor: Values) -> Values:
        """A tensor to be sent, in the wire's own precision."""
        field = self.message[name]
        if not isinstance(tensor, np.ndarray | np.generic) or tensor.dtype.kind not in "iuf":
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            why = f"tensor {name!r} is of type {kind}; a NumPy array of real numbers is needed"
            raise WireError(why, code="wrong-type", field=name)
        if tensor.shape != field.shape:
            why = f"tensor {name!r} has shape {tensor.shape}; the schema asks for {field.shape}"
            raise WireError(why, code="wrong-layout", field=name)
        x = _whole(name, tensor) if field.encoding.name == "int32" else np.asarray(tensor, dtype=np.float32)
        low, high = self._sent[name]
        if not _within(x, low, high):
            _refuse(name, tensor, ~np.isfinite(x), "a finite float32 is needed", "not-finite")
            _refuse(name, x, (x < low) | (x > high), f"allowed is {field.low} to {field.high}", "out-of-bounds")
        return x

    def _write_bits(self, arrays: Mapping[str, Values]) -> dict[str, Values]:
        """All 1-bit tensors at once, in the order of the message."""
        if not self._bits:
            return {}
        packed = np.packbits(np.concatenate([arrays[name].ravel() >= 0 for name in self._bits]))
        means = [cast(Bit, field.encoding).scale(arrays[name]) for name, field in self._bits.items()]
        scales = np.asarray(means, dtype=np.float32)
        _check_scales("scales", scales, 1)
        return {"bits": packed, "scales": scales} if self._scaled else {"bits": packed}

    # Tensors received

    def _check_stored(self, body: Body) -> None:
        """Refuse what is wrong with bits, levels and scales, before values are made of them."""
        if self._bits:
            self._check_padding(self._part("bits", body))
            scales, fixed = self._scales(body), self._units
            _check_scales("scales", scales, 1)
            units = [cast(Bit, field.encoding).unit for field in self._bits.values()]
            _refuse("scales", scales, ~np.isnan(fixed) & (scales != fixed), f"the schema fixes {units}", "bad-scale")
        for name, field in self.message.items():
            if isinstance(field.encoding, Byte):
                levels = self._part(name, body)
                _refuse(name, levels, levels == -128, "levels run from -127 to 127", "out-of-bounds")
                _check_scales(f"{name}.scale", self._part(f"{name}.scale", body), 127)

    def _check_padding(self, packed: Values) -> None:
        total = sum(field.size for field in self._bits.values())
        if total % 8 and packed[-1] & (0xFF >> total % 8):
            why = f"tensor 'bits' goes on after its {total} values; the bits that fill its last byte must be 0"
            raise WireError(why, code="padding", field="bits")

    def _settled(self, body: Body) -> set[str]:
        """1-bit tensors whose scale is within the bounds with either sign, so that no sign can break them."""
        scales = zip(self._bits, self._scales(body).tolist(), strict=True)
        return {name for name, scale in scales if self._received[name][0] <= -scale <= scale <= self._received[name][1]}

    def _refuse_received(self, name: str, x: Values, body: Body) -> None:
        """Refuse what no honest sender's values could have become, allowing for its rounding."""
        low, high = self._received[name]
        field, slack = self.message[name], np.zeros(())
        if isinstance(field.encoding, Byte):
            # Half a step and a little: the step received, but none wider than the bounds can give rise to.
            scale = self._part(f"{name}.scale", body).astype(np.float64)
            steps = np.repeat(scale, field.size // len(scale)).reshape(field.shape)
            slack = 0.51 * np.minimum(steps, max(abs(low), abs(high)) / 127) + _TINY
        rounding = f", give or take {field.encoding.name}'s rounding" if field.encoding.lossy else ""
        _refuse(name, x, ~np.isfinite(x), "a finite number is needed", "not-finite")
        outside = (x < low - slack) | (x > high + slack)
        _refuse(name, x, outside, f"allowed is {field.low} to {field.high}{rounding}", "out-of-bounds")

    def _open(self, name: str, body: Body) -> Values:
        """A tensor that is not of 1 bit a value."""
        field = self.message[name]
        x = self._part(name, body)
        if isinstance(field.encoding, Byte):
            scale = self._part(f"{name}.scale", body)[:, None]  # (rows, 1), each for the width of its row
            rows = x.reshape(len(scale), field.size // max(len(scale), 1))
            return (rows.astype(np.float32) * scale).reshape(field.shape)
        return x.astype(np.float32) if x.dtype == np.float16 else x

    def _open_bits(self, body: Body) -> dict[str, Values]:
        """All 1-bit tensors: the scale of each, with the sign bit of a float32 set where its bit is 0."""
        values = np.unpackbits(~self._part("bits", body)).astype(np.uint32)
        values <<= 31
        found, end = {}, 0
        for (name, field), scale in zip(self._bits.items(), self._scales(body).view(np.uint32), strict=True):
            start, end = end, end + field.size
            own = values[start:end]
            own |= scale
            found[name] = own.view(np.float32).reshape(field.shape)
        return found

    def _scales(self, body: Body) -> Values:
        """One scale for each 1-bit tensor, received or fixed by the schema."""
        return self._part("scales", body) if self._scaled else self._units


# What a message looks like when stored


def _bit_fields(message: Message) -> dict[str, Field]:
    return {name: field for name, field in message.items() if isinstance(field.encoding, Bit)}


def _stored(message: Message) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of every stored tensor."""
    parts: list[tuple[str, str, tuple[int, ...]]] = []
    bits = _bit_fields(message)
    for name, field in message.items():
        if name in bits:
            continue
        if field.encoding.name not in _STORED:
            why = f"tensor {name!r} has encoding {field.encoding.name!r}; known: {', '.join(_STORED)}, bit"
            raise WireError(why, code="wrong-layout", field=name)
        parts.append((name, _STORED[field.encoding.name], field.shape))
        if isinstance(field.encoding, Byte):
            parts.append((f"{name}.scale", "F32", (field.encoding.rows(field.shape),)))
    if bits:
        parts.append(("bits", "U8", (math.ceil(sum(field.size for field in bits.values()) / 8),)))
        if not _units_fixed(bits):
            parts.append(("scales", "F32", (len(bits),)))
    return parts


def _units_fixed(bits: Mapping[str, Field]) -> bool:
    return all(cast(Bit, field.encoding).unit is not None for field in bits.values())


def _layout(message: Message) -> Layout:
    """The header as safetensors writes it: the widest types first, then by name."""
    rank = {dtype: place for place, dtype in enumerate(_TYPES)}
    layout: Layout = {}
    end = 0
    for name, dtype, shape in sorted(_stored(message), key=lambda part: (rank[part[1]], part[0])):
        if name in layout or name == "__metadata__":
            why = f"the name {name!r} is taken; a message needs it for itself, so call that tensor otherwise"
            raise WireError(why, code="duplicate-name", field=name)
        start, end = end, end + math.prod(shape) * _TYPES[dtype].itemsize
        layout[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return layout


def _start(layout: Layout) -> bytes:
    """What a body begins with: the length of the header, and the header. Of nothing there is none."""
    if not layout:
        return b""
    text = json.dumps(layout, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# Judging a header


def _check_header(layout: Layout, body: bytes, expected: int) -> None:
    """Refuse a header that is not, but for the order of its keys, the one the schema fixes."""
    length = int.from_bytes(body[:8], "little")
    if length != expected:
        why = f"the header claims {length} bytes; this message's has exactly {expected}"
        raise WireError(why, code="malformed-header")
    try:
        received = json.loads(body[8 : 8 + length].decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, endless digits; nesting without end
        why = f"the header is no JSON object of {expected} bytes: {_short(str(error))}"
        raise WireError(why, code="malformed-header") from error
    if not isinstance(received, dict):
        raise WireError(f"the header is {_short(received)}; a JSON object is needed", code="malformed-header")
    _same_names(received, layout)
    for name, part in layout.items():
        if received[name] != part:
            why = f"tensor {name!r} is stored as {_short(received[name])}; the schema asks for {part}"
            raise WireError(why, code="wrong-layout", field=name)
    try:
        load(body)  # what equals the layout in Python, as 2.0 equals 2, need not be safetensors
    except SafetensorError as error:
        raise WireError(f"the body cannot be read: {error}", code="malformed-header") from error


def _short(received: object) -> str:
    """What somebody sent, cut to a length fit for a message."""
    return _SHORT.repr(received)


def _label(name: str) -> str:
    """A name somebody sent, as it is where it is short and can be printed."""
    return name if len(name) <= _SHORT.maxstring and name.isprintable() else _short(name)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            why = f"the header has the key {_short(key)} twice; each may be there once"
            raise WireError(why, code="duplicate-name", field=_label(key))
        found[key] = value
    return found


def _same_names(received: Iterable[str], allowed: Iterable[str]) -> None:
    missing, unknown = sorted(set(allowed) - set(received)), sorted(set(received) - set(allowed))
    if missing or unknown:
        why = (
            f"the tensors do not match the schema: missing {_short(missing)}, unknown {_short(unknown)}; "
            f"declared are {_short(sorted(allowed))}"
        )
        raise WireError(why, code="undeclared-name", field=missing[0] if missing else _label(unknown[0]))


# Judging values


def _refuse(name: str, x: Values, bad: Values, why: str, code: str) -> None:
    """Refuse the first value of `x` that is marked bad, naming it and its place."""
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), x.shape)
        raise WireError(f"tensor {name!r} at {tuple(map(int, place))} is {x[place]!s}; {why}", code=code, field=name)


def _within(x: Values, low: float, high: float) -> bool:
    """Whether all values are numbers within finite bounds; of what is not a number, no extreme is."""
    return not x.size or bool(x.min() >= low and x.max() <= high)


def _whole(name: str, tensor: Values) -> Values:
    if tensor.dtype != np.int32:
        wide, why = tensor.astype(np.float64), "a whole number of 32 bits is needed"
        _refuse(name, tensor, ~np.isfinite(wide), why, "not-finite")
        _refuse(name, tensor, (wide < -(2**31)) | (wide >= 2**31), why, "out-of-bounds")
        _refuse(name, tensor, wide != np.trunc(wide), why, "wrong-type")
    return np.asarray(tensor, dtype=np.int32)


def _bounds(field: Field) -> Limits:
    """Bounds in the precision of the values they are compared with: 0.1 itself must not be beyond 0.1."""
    if field.encoding.name == "int32":
        return field.low, field.high
    with np.errstate(over="ignore"):
        return float(np.float32(field.low)), float(np.float32(field.high))


def _bounds_received(field: Field) -> Limits:
    """What values at the bounds become on their way; an 8-bit tensor's steps are allowed for when they are known."""
    if isinstance(field.encoding, Bit):
        return _bit_bounds(field)
    if isinstance(field.encoding, Byte) or field.encoding.name == "int32":
        return _bounds(field)
    # rounding keeps order, so what was within the bounds is within the rounded bounds
    low, high = map(float, field.encoding.quantize(np.asarray(_bounds(field), dtype=np.float32)))
    return low, high


def _bit_bounds(field: Field) -> Limits:
    """What signs and a mean magnitude can become: across zero, the wider bound counts on both sides."""
    unit = cast(Bit, field.encoding).unit
    low, high = _bounds(field)
    reach = max(abs(low), abs(high)) if unit is None else abs(unit)
    low = -reach if low < 0 else min(low, reach)
    high = reach if high >= 0 else max(high, -reach)
    return low - 1e-5 * abs(low) - _TINY, high + 1e-5 * abs(high) + _TINY  # a mean of equal values may round upwards


def _finite(bounds: Limits) -> Limits:
    """The same bounds, with nothing infinite between them."""
    return max(bounds[0], -_LARGEST), min(bounds[1], _LARGEST)


def _check_scales(name: str, scales: Values, steps: int) -> None:
    bad = ~np.isfinite(scales * np.float32(steps)) | np.signbit(scales)
    _refuse(name, scales, bad, f"a scale is not negative and {steps} times it is a finite float32", "bad-scale")


# One tensor on its way out


def _write(name: str, field: Field, x: Values) -> dict[str, Values]:
    """What is stored of a tensor that is not of 1 bit a value."""
    encoding = field.encoding
    if isinstance(encoding, Byte):
        levels, scale = encoding.levels(x)
        _check_scales(f"{name}.scale", scale, 127)
        return {name: levels, f"{name}.scale": scale}
    return {name: np.asarray(encoding.quantize(x))}
