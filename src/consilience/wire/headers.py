"""The headers beside a body, as peers and relays write them: which channels the body holds, from which version.

    Consilience-Upload: prototypes, observations;entries=1, weights;version=3;weight=120

One item per channel, in the form of structured HTTP fields.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from consilience.errors import WireError

UPLOAD_HEADER, ANSWER_HEADER = "Consilience-Upload", "Consilience-Answer"
"""The headers that say what a body holds, of an upload and of an answer."""
LATEST_ROUND = 2**53
_ITEM = re.compile(r"([a-z0-9][a-z0-9-]{0,63})((?:;[a-z]+=[0-9.e+-]{1,24})*)")
_LONGEST = 8192


@dataclass(frozen=True)
class Part:
    """What a body holds of one channel: entries of a pool, the version of a moving mean, the contribution's weight.

    full: 1 if the body holds the common values themselves, and not by how much they moved.
    """

    entries: int | None = None
    version: int | None = None
    weight: float | None = None
    full: int | None = None

    def __str__(self) -> str:
        values = [(name, getattr(self, name)) for name in _FIELDS]
        return "".join([f";{name}={_shortest(value)}" for name, value in values if value is not None])


_FIELDS = tuple(field.name for field in fields(Part))
Parts = Mapping[str, Part]
"""The channels of a body, in the order of the charter."""


def format_parts(parts: Parts) -> str:
    """The header's value for these parts."""
    return ", ".join(f"{channel}{part}" for channel, part in parts.items())


def parse_parts(text: str) -> dict[str, Part]:
    """The parts in a header's value; refuses text that is not in the form above."""
    if len(text) > _LONGEST:
        raise WireError(f"the header has {len(text)} characters; at most {_LONGEST} are read", code="malformed-upload")
    parts: dict[str, Part] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if not match:
            raise WireError(
                f"{item.strip()[:80]!r} is not an item; write CHANNEL;entries=N;version=N;weight=X",
                code="malformed-upload",
            )
        name, pairs = match[1], [pair.split("=") for pair in match[2].split(";") if pair]
        values = dict(pairs)
        if name in parts or len(values) < len(pairs):
            raise WireError(
                f"{name!r}, or a parameter of it, is there twice; name each once", code="malformed-upload", field=name
            )
        parts[name] = _part(name, values)
    return parts


def _part(name: str, texts: Mapping[str, str]) -> Part:
    values: dict[str, float] = {}
    for key, text in texts.items():
        try:
            value = float(text) if key == "weight" else int(text)
        except ValueError:
            value = math.nan
        if key not in _FIELDS or not 0 <= value <= LATEST_ROUND:
            raise WireError(
                f"{name}: {key}={text[:40]} is not allowed; known are {', '.join(sorted(_FIELDS))}, each a number, "
                f"0 or more",
                code="malformed-upload",
                field=name,
            )
        values[key] = value
    return Part(**values)  # type: ignore[arg-type]  # all but weight are integers


def upload_sha256(header: str, body: bytes) -> str:
    """Identifies an upload: SHA-256 of the header's value, a line feed, and the body."""
    return hashlib.sha256(header.encode() + b"\n" + body).hexdigest()


def _shortest(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
