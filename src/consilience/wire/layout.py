"""The header that a message's schema fixes, and the strict check of a header that was received.

A body is a safetensors file without metadata. A tensor's name in it is its place in the message, "0", "1" and so on,
which both sides know from the charter: names of parameters are long. All 1-bit tensors of a message share one packed
tensor, `bits`, and one of `scales` (left out if every unit is fixed). All 4-bit tensors share `int4`, packed, and
`int4_scales`. An 8-bit tensor has its scales beside it in `PLACE.scale`. Errors have the names of the message.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from consilience.errors import WireError
from consilience.wire.encodings import Bit, Byte, Nibble
from consilience.wire.schema import Field, Message

CODES = {
    "wrong-length": "the body is not as long as the schema says",
    "malformed-header": "the header is of another length, not a JSON object, or not readable by safetensors",
    "duplicate-name": "a name is there twice, or is reserved",
    "undeclared-name": "a declared tensor is missing, or there is an undeclared one",
    "wrong-layout": "a tensor has another type, shape or offset than the schema says",
    "wrong-type": "a tensor to be sent is not an array of real numbers, or a count is not an integer",
    "not-finite": "a value is NaN, infinite, or beyond float32",
    "out-of-bounds": "a value is outside the bounds of its field, or of its encoding",
    "bad-scale": "a scale is negative, too large, NaN, or not the one the schema fixes",
    "padding": "the bits that fill the last byte are not all 0",
}
"""What may be wrong with a body, and with tensors to be sent in one."""

Layout = dict[str, dict[str, Any]]
"""A safetensors header: stored tensors by their name in the message, with dtype, shape and data_offsets."""
Names = dict[str, str]
"""By its name in the message, the name that a stored tensor has in a body."""

_STORED = {"float32": "F32", "int32": "I32", "float16": "F16", "int8": "I8"}
_NUMPY = {"F32": "<f4", "I32": "<i4", "F16": "<f2", "I8": "i1", "U8": "u1"}
TYPES = {stored: np.dtype(code) for stored, code in _NUMPY.items()}
"""The types of stored values, in the order in which safetensors sorts its tensors."""
SCALE = ".scale"
"""After the name of an 8-bit tensor, in the name of its scales."""
_SHARED = ("int4", "int4_scales", "bits", "scales")
_SHORT = reprlib.Repr()
_SHORT.maxstring = 100


def bit_fields(message: Message) -> dict[str, Field]:
    """The 1-bit tensors of a message."""
    return {name: field for name, field in message.items() if isinstance(field.encoding, Bit)}


def nibble_fields(message: Message) -> dict[str, Field]:
    """The 4-bit tensors of a message."""
    return {name: field for name, field in message.items() if isinstance(field.encoding, Nibble)}


def _stored(message: Message) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of every stored tensor."""
    parts: list[tuple[str, str, tuple[int, ...]]] = []
    bits, nibbles = bit_fields(message), nibble_fields(message)
    for name, field in message.items():
        if name in bits or name in nibbles:
            continue
        if field.encoding.name not in _STORED:
            why = f"tensor {name!r} has encoding {field.encoding.name!r}; known: {', '.join(_STORED)}, int4, bit"
            raise WireError(why, code="wrong-layout", field=name)
        parts.append((name, _STORED[field.encoding.name], field.shape))
        if isinstance(field.encoding, Byte):
            parts.append((f"{name}{SCALE}", "F32", (field.encoding.rows(field.shape),)))
    if nibbles:
        parts.append(("int4", "U8", (math.ceil(sum(field.size for field in nibbles.values()) / 2),)))
        scales = sum(cast(Nibble, field.encoding).rows(field.shape) for field in nibbles.values())
        parts.append(("int4_scales", "F32", (scales,)))
    if bits:
        parts.append(("bits", "U8", (math.ceil(sum(field.size for field in bits.values()) / 8),)))
        if not units_fixed(bits):
            parts.append(("scales", "F32", (len(bits),)))
    return parts


def names_in_body(message: Message) -> Names:
    """The names that tensors have in a body: their places in the message; those that tensors share stay."""
    places = {name: str(place) for place, name in enumerate(message)}
    scales = {f"{name}{SCALE}": f"{place}{SCALE}" for name, place in places.items()}
    return {name: name for name in _SHARED} | scales | places


def units_fixed(bits: Mapping[str, Field]) -> bool:
    """Whether the schema fixes the scale of every 1-bit tensor."""
    return all(cast(Bit, field.encoding).unit is not None for field in bits.values())


def stored_layout(message: Message, names: Names) -> Layout:
    """The header as safetensors writes it: by type as in `TYPES`, then by name in the body."""
    rank = {dtype: place for place, dtype in enumerate(TYPES)}
    layout: Layout = {}
    end = 0
    for name, dtype, shape in sorted(_stored(message), key=lambda part: (rank[part[1]], names[part[0]])):
        if name in layout:
            why = f"the name {name!r} is reserved or used twice; rename the tensor"
            raise WireError(why, code="duplicate-name", field=name)
        start, end = end, end + math.prod(shape) * TYPES[dtype].itemsize
        layout[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return layout


def encode_header(layout: Layout, names: Names) -> bytes:
    """The start of a body: the length of the header, and the header; nothing for an empty message."""
    if not layout:
        return b""
    text = json.dumps({names[name]: part for name, part in layout.items()}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def check_header(layout: Layout, names: Names, body: bytes, expected: int) -> None:
    """Refuse a header that differs from the schema's in more than the order of its keys."""
    known = {stored: name for name, stored in names.items()}
    length = int.from_bytes(body[:8], "little")
    if length != expected:
        why = f"the header claims {length} bytes; the header of this message has exactly {expected}"
        raise WireError(why, code="malformed-header")
    try:
        received = json.loads(body[8 : 8 + length].decode(), object_pairs_hook=partial(_without_duplicates, known))
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, too many digits; too deep nesting
        why = f"the header is not a JSON object of {expected} bytes: {_short(str(error))}"
        raise WireError(why, code="malformed-header") from error
    if not isinstance(received, dict):
        raise WireError(f"the header is {_short(received)}; a JSON object is needed", code="malformed-header")
    check_names(received, (names[name] for name in layout), known)
    for name, part in layout.items():
        if received[names[name]] != part:
            why = f"tensor {name!r} is stored as {_short(received[names[name]])}; the schema asks for {part}"
            raise WireError(why, code="wrong-layout", field=name)
    try:
        load(body)  # 2.0 equals 2 in Python, but safetensors refuses it
    except SafetensorError as error:
        raise WireError(f"the body cannot be read: {error}", code="malformed-header") from error


def _short(received: object) -> str:
    """A received value, cut to a length that fits a message."""
    return _SHORT.repr(received)


def _label(name: str) -> str:
    """A received name: as it is if it is short and printable."""
    return name if len(name) <= _SHORT.maxstring and name.isprintable() else _short(name)


def _without_duplicates(known: Mapping[str, str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            of = f", tensor {known[key]!r}," if key in known else ""
            why = f"the header has the key {_short(key)}{of} twice; each key is allowed once"
            raise WireError(why, code="duplicate-name", field=known.get(key, _label(key)))
        found[key] = value
    return found


def check_names(
    received: Iterable[str], allowed: Iterable[str], known: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse names that are missing or unknown; known: by names in a body, those of the message."""
    found, declared = set(received), set(allowed)
    missing, unknown = sorted(known.get(name, name) for name in declared - found), sorted(found - declared)
    if missing or unknown:
        why = (
            f"the tensors do not match the schema: missing {_short(missing)}, unknown {_short(unknown)}; "
            f"declared are {_short(sorted(known.get(name, name) for name in declared))}"
        )
        if not set(unknown).isdisjoint(known.values()):
            why += "; in a body a tensor's name is its place in the message, such as '0'"
        raise WireError(why, code="undeclared-name", field=missing[0] if missing else _label(unknown[0]))
