"""What travels beside a body, as peers and relays write it: which channels are in it, from which version, how heavy.

    Consilience-Put: prototypes, observations;entries=1, weights;version=3;weight=120

One item a channel, in the manner of structured HTTP fields.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from consilience.errors import WireError

UPLOAD_HEADER, ANSWER_HEADER = "Consilience-Put", "Consilience-Answer"
"""Headers that say what a body holds, on its way up and down."""
LATEST_ROUND = 2**53
_ITEM = re.compile(r"([a-z0-9][a-z0-9-]{0,63})((?:;[a-z]+=[0-9.e+-]{1,24})*)")
_LONGEST = 8192


@dataclass(frozen=True)
class Part:
    """What is said of one channel: how many entries of a pool, the version of a moving mean, and what it weighs.

    whole: the body holds the common values, and not by how much they moved.
    """

    entries: int | None = None
    version: int | None = None
    weight: float | None = None
    whole: int | None = None

    def __str__(self) -> str:
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        return "".join(f";{key}={_short(value)}" for key, value in said.items() if value is not None)


Parts = Mapping[str, Part]
"""The channels of a body, in the order of the charter."""


def format_parts(parts: Parts) -> str:
    """The header that says it."""
    return ", ".join(f"{channel}{part}" for channel, part in parts.items())


def parse_parts(text: str) -> dict[str, Part]:
    """What a header says; refused where it is not in the form above."""
    if len(text) > _LONGEST:
        raise WireError(f"the header has {len(text)} characters; at most {_LONGEST} are read", code="malformed-put")
    parts: dict[str, Part] = {}
    for item in text.split(","):
        found = _ITEM.fullmatch(item.strip())
        if not found:
            raise WireError(
                f"{item.strip()[:80]!r} is no item; write CHANNEL;entries=N;version=N;weight=X", code="malformed-put"
            )
        name, pairs = found[1], [pair.split("=") for pair in found[2].split(";") if pair]
        said = dict(pairs)
        if name in parts or len(said) < len(pairs):
            raise WireError(f"{name!r}, or something of it, is named twice", code="malformed-put", field=name)
        parts[name] = _part(name, said)
    return parts


def _part(name: str, said: Mapping[str, str]) -> Part:
    known = {f.name for f in fields(Part)}
    values: dict[str, float] = {}
    for key, text in said.items():
        try:
            value = float(text) if key == "weight" else int(text)
        except ValueError:
            value = math.nan
        if key not in known or not 0 <= value <= LATEST_ROUND:
            raise WireError(
                f"{name}: {key}={text[:40]} cannot be; known are {', '.join(sorted(known))}, each a number, 0 or more",
                code="malformed-put",
                field=name,
            )
        values[key] = value
    return Part(**values)  # type: ignore[arg-type]  # weight alone is no whole number


def upload_sha256(put: str, body: bytes) -> str:
    """By what an upload is known: SHA-256 of what is said beside it, a line's end, and the body."""
    return hashlib.sha256(put.encode() + b"\n" + body).hexdigest()


def _short(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
