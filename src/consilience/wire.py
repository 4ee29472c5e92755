"""Tensors to bytes and back, and how many bytes that will be; what breaks the schema is refused by name.

A body is a safetensors file without metadata. All 1-bit tensors of a message share one packed tensor, `bits`, and
one of `scales` (left out where every unit is fixed); an 8-bit tensor has its scales beside it in `NAME.scale`.
The schema alone fixes the header, so a body has one possible length and is judged before safetensors sees it.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from consilience.encodings import Bit, Byte
from consilience.errors import WireError
from consilience.schema import Field, Message

__all__ = ["decode", "encode", "size"]

Values = np.ndarray[Any, Any]
Layout = dict[str, dict[str, Any]]

_STORED = {"float32": "F32", "int32": "I32", "float16": "F16", "int8": "I8"}
_WIDTH = {"F32": 4, "I32": 4, "F16": 2, "I8": 1, "U8": 1}
"""Bytes a value, in the order in which safetensors lays its tensors out."""
_TINY = float(np.finfo(np.float32).tiny)
"""Below this, single precision itself is coarse, and bounds are not worth a quarrel."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = 100


def size(message: Message) -> int:
    """The exact length of an encoded body, from the schema alone."""
    if not message:
        return 0
    layout = _layout(message)
    data: int = max(part["data_offsets"][1] for part in layout.values())
    return 8 + len(_header(layout)) + data


def encode(message: Message, tensors: Mapping[str, Values]) -> bytes:
    """The body that carries `tensors`: all that `message` declares, and nothing else.

    Numbers are taken in single precision first, so of float32 arrays the far side sees exactly what `quantise` gives.
    """
    _same_names(tensors, message)
    if not message:
        return b""
    _layout(message)  # refuses names that clash, before one could overwrite the other
    arrays = {name: _checked(name, field, tensors[name]) for name, field in message.items()}
    stored: dict[str, Values] = {}
    for name, field in message.items():
        if not isinstance(field.encoding, Bit):
            stored |= _write(name, field, arrays[name])
    stored |= _write_bits(_bit_fields(message), arrays)
    return save({name: np.asarray(x, order="C") for name, x in stored.items()})  # it copies memory just as it lies


def decode(message: Message, body: bytes) -> dict[str, Values]:
    """The tensors of `message` as the far side's `quantise` left them, or a refusal of the whole body."""
    if len(body) != size(message):
        raise WireError(f"a body of {len(body)} bytes was received; this message takes exactly {size(message)}")
    if not message:
        return {}
    _check_header(_layout(message), body)
    try:
        stored = load(body)
    except SafetensorError as error:
        raise WireError(f"the body cannot be read: {error}") from error
    signs = _read_bits(_bit_fields(message), stored)
    return {name: signs[name] if name in signs else _read(name, field, stored) for name, field in message.items()}


# What a message looks like when stored


def _bit_fields(message: Message) -> dict[str, Field]:
    return {name: field for name, field in message.items() if isinstance(field.encoding, Bit)}


def _parts(message: Message) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of every stored tensor."""
    parts: list[tuple[str, str, tuple[int, ...]]] = []
    bits = _bit_fields(message)
    for name, field in message.items():
        if name in bits:
            continue
        if field.encoding.name not in _STORED:
            raise WireError(f"tensor {name!r} has encoding {field.encoding.name!r}; known: {', '.join(_STORED)}, bit")
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
    rank = {dtype: place for place, dtype in enumerate(_WIDTH)}
    layout: Layout = {}
    end = 0
    for name, dtype, shape in sorted(_parts(message), key=lambda part: (rank[part[1]], part[0])):
        if name in layout or name == "__metadata__":
            raise WireError(f"the name {name!r} is taken; a message needs it for itself, so call that tensor otherwise")
        start, end = end, end + math.prod(shape) * _WIDTH[dtype]
        layout[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return layout


def _header(layout: Layout) -> bytes:
    text = json.dumps(layout, ensure_ascii=False, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


# Judging a header


def _check_header(layout: Layout, body: bytes) -> None:
    """Refuse a header other than the one the schema fixes; the order of its keys is free."""
    length, expected = int.from_bytes(body[:8], "little"), len(_header(layout))
    if length != expected:
        raise WireError(f"the header claims {length} bytes; this message's has exactly {expected}")
    try:
        received = json.loads(body[8 : 8 + length].decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, endless digits; nesting without end
        raise WireError(f"the header is no JSON object of {expected} bytes: {_short(str(error))}") from error
    if not isinstance(received, dict):
        raise WireError(f"the header is {_short(received)}; a JSON object is needed")
    _same_names(received, layout)
    for name, part in layout.items():
        if received[name] != part:
            raise WireError(f"tensor {name!r} is stored as {_short(received[name])}; the schema asks for {part}")


def _short(received: object) -> str:
    """What somebody sent, cut to a length fit for a message."""
    return _SHORT.repr(received)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise WireError(f"the header has the key {_short(key)} twice; each may be there once")
        found[key] = value
    return found


def _same_names(received: Iterable[str], allowed: Iterable[str]) -> None:
    missing, unknown = sorted(set(allowed) - set(received)), sorted(set(received) - set(allowed))
    if missing or unknown:
        raise WireError(
            f"the tensors do not match the schema: missing {_short(missing)}, unknown {_short(unknown)}; "
            f"declared are {_short(sorted(allowed))}"
        )


# Judging values


def _refuse(name: str, x: Values, bad: Values, why: str) -> None:
    """Refuse the first value of `x` that is marked bad, naming it and its place."""
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), x.shape)
        raise WireError(f"tensor {name!r} at {tuple(map(int, place))} is {x[place]!s}; {why}")


def _checked(name: str, field: Field, tensor: Values) -> Values:
    """A tensor to be sent, in the wire's own precision."""
    if not isinstance(tensor, np.ndarray | np.generic) or tensor.dtype.kind not in "iuf":
        kind = getattr(tensor, "dtype", type(tensor).__name__)
        raise WireError(f"tensor {name!r} is of type {kind}; a NumPy array of real numbers is needed")
    if tensor.shape != field.shape:
        raise WireError(f"tensor {name!r} has shape {tensor.shape}; the schema asks for {field.shape}")
    x = _whole(name, tensor) if field.encoding.name == "int32" else _real(name, tensor)
    low, high = _bounds(field)
    _refuse(name, x, (x < low) | (x > high), f"allowed is {field.low} to {field.high}")
    return x


def _real(name: str, tensor: Values) -> Values:
    with np.errstate(over="ignore"):
        x = np.asarray(tensor, dtype=np.float32)
    _refuse(name, tensor, ~np.isfinite(x), "a finite float32 is needed")
    return x


def _whole(name: str, tensor: Values) -> Values:
    wide = tensor.astype(np.float64)
    whole = (wide == np.trunc(wide)) & (wide >= -(2**31)) & (wide < 2**31)
    _refuse(name, tensor, ~whole, "a whole number of 32 bits is needed")
    return np.asarray(tensor, dtype=np.int32)


def _bounds(field: Field) -> tuple[float, float]:
    """Bounds in the precision of the values they are compared with: 0.1 itself must not be beyond 0.1."""
    if field.encoding.name == "int32":
        return field.low, field.high
    with np.errstate(over="ignore"):
        return float(np.float32(field.low)), float(np.float32(field.high))


def _check_scales(name: str, scales: Values, steps: int) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # what would warn is about to be refused
        bad = ~np.isfinite(scales * np.float32(steps)) | np.signbit(scales)
    _refuse(name, scales, bad, f"a scale is not negative and {steps} times it is a finite float32")


def _check_received(name: str, field: Field, x: Values, low: Any, high: Any) -> None:
    """Refuse what no honest sender's values could have become; `low` and `high` allow for its rounding."""
    _refuse(name, x, ~np.isfinite(x), "a finite number is needed")
    rounding = f", give or take {field.encoding.name}'s rounding" if field.encoding.lossy else ""
    with np.errstate(over="ignore"):  # a bound and its allowance may be more than a float32 can hold
        outside = (x < low) | (x > high)
    _refuse(name, x, outside, f"allowed is {field.low} to {field.high}{rounding}")


# One tensor, there and back


def _write(name: str, field: Field, x: Values) -> dict[str, Values]:
    encoding = field.encoding
    if isinstance(encoding, Byte):
        levels, scale = encoding.levels(x)
        _check_scales(f"{name}.scale", scale, 127)
        return {name: levels.astype(np.int8).reshape(field.shape), f"{name}.scale": scale}
    if encoding.name == "float16":
        return {name: np.asarray(encoding.quantise(x)).astype(np.float16)}
    return {name: x}


def _read(name: str, field: Field, stored: Mapping[str, Values]) -> Values:
    if isinstance(field.encoding, Byte):
        return _read_byte(name, field, stored[name], stored[f"{name}.scale"])
    x = stored[name]
    low, high = _bounds(field)
    if x.dtype != np.int32:
        with np.errstate(invalid="ignore"):  # a signalling NaN is about to be refused
            x = x.astype(np.float32)
        # rounding keeps order, so what was within the bounds is within the rounded bounds
        low, high = map(float, field.encoding.quantise(np.asarray([low, high], dtype=np.float32)))
    _check_received(name, field, x, low, high)
    return x


def _read_byte(name: str, field: Field, levels: Values, scale: Values) -> Values:
    _refuse(name, levels, levels == -128, "levels run from -127 to 127")
    _check_scales(f"{name}.scale", scale, 127)
    # (rows, width) * (rows, 1): the steps of each row stretched over its values
    width = field.size // max(len(scale), 1)
    steps = np.repeat(scale, width).reshape(field.shape)
    x: Values = levels.astype(np.float32) * steps
    # Half a step and a little: the step received, but none wider than the bounds can give rise to.
    low, high = _bounds(field)
    widest = max(abs(low), abs(high)) / 127
    slack = 0.51 * np.minimum(steps.astype(np.float64), widest) + _TINY
    _check_received(name, field, x, low - slack, high + slack)
    return x


# All 1-bit tensors at once, there and back


def _write_bits(bits: Mapping[str, Field], arrays: Mapping[str, Values]) -> dict[str, Values]:
    if not bits:
        return {}
    packed = np.packbits(np.concatenate([arrays[name].ravel() >= 0 for name in bits]))
    with np.errstate(over="ignore"):
        means = [cast(Bit, field.encoding).scale(arrays[name]) for name, field in bits.items()]
    scales = np.asarray(means, dtype=np.float32)
    _check_scales("scales", scales, 1)
    return {"bits": packed} if _units_fixed(bits) else {"bits": packed, "scales": scales}


def _read_bits(bits: Mapping[str, Field], stored: Mapping[str, Values]) -> dict[str, Values]:
    if not bits:
        return {}
    total = sum(field.size for field in bits.values())
    signs = np.unpackbits(stored["bits"]).astype(np.bool_)
    if signs[total:].any():
        raise WireError(f"tensor 'bits' goes on after its {total} values; the bits that fill its last byte must be 0")
    scales = _read_scales(bits, stored)
    found: dict[str, Values] = {}
    for (name, field), scale in zip(bits.items(), scales, strict=True):
        own, signs = signs[: field.size], signs[field.size :]
        found[name] = np.where(own, scale, -scale).reshape(field.shape)
        _check_received(name, field, found[name], *_bit_bounds(field))
    return found


def _read_scales(bits: Mapping[str, Field], stored: Mapping[str, Values]) -> Values:
    """One scale for each 1-bit tensor, received or fixed by the schema."""
    units = [cast(Bit, field.encoding).unit for field in bits.values()]
    fixed = np.asarray([np.nan if unit is None else unit for unit in units], dtype=np.float32)
    scales = fixed if _units_fixed(bits) else stored["scales"]
    _check_scales("scales", scales, 1)
    _refuse("scales", scales, ~np.isnan(fixed) & (scales != fixed), f"the schema fixes {units}")
    return scales


def _bit_bounds(field: Field) -> tuple[float, float]:
    """What signs and a mean magnitude can become: across zero, the wider bound counts on both sides."""
    unit = cast(Bit, field.encoding).unit
    low, high = _bounds(field)
    reach = max(abs(low), abs(high)) if unit is None else abs(unit)
    low = -reach if low < 0 else min(low, reach)
    high = reach if high >= 0 else max(high, -reach)
    return low - 1e-5 * abs(low) - _TINY, high + 1e-5 * abs(high) + _TINY  # a mean of equal values may round upwards
