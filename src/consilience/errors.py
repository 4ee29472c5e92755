"""Every error this library raises on purpose, in one tree.

ConsilienceError
├── ConfigurationError      settings that cannot work together, or cannot work at all
│   └── UnknownName         a method, data set, model or key nobody has heard of
├── DataError               a data file that is missing, damaged or not what it claims
├── WireError               a message that breaks its schema
├── ChannelError            a contribution a channel cannot take
├── RelayError              what a relay refuses
│   └── Unreachable         a relay that does not answer now, and may later
├── TrainingError           a loss that is no number
├── CheckpointError         a checkpoint that is damaged or belongs to another run
└── StorageError            a disk that is full or a folder that cannot be written

A message names the thing, the value received, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ConsilienceError(Exception):
    """The root: catch this to catch everything the library refuses."""


class ConfigurationError(ConsilienceError):
    """A setting, or a combination of settings, that cannot work."""


class UnknownName(ConfigurationError):
    """A name nobody has heard of; the message names the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], of: str = "", also: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = f"Known: {', '.join(names) or 'none'}"
        super().__init__(f"unknown {kind} {name!r}{of and f' of {of}'}.{hint} {listed}{also and f'; {also}'}")
        self.kind, self.name, self.nearest = kind, name, near[0] if near else None
        self._given = kind, name, tuple(names), of, also

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownName, self._given  # as it was made: it may come from a worker


class DataError(ConsilienceError):
    """A data file that is missing, damaged or not what it claims to be."""


class WireError(ConsilienceError):
    """A message that breaks its schema; nothing of it was used.

    `code` says what is wrong in a word that programs can compare (`wire.CODES` lists those of a body), and `field`
    which tensor is at fault, where it is one.
    """

    def __init__(self, message: str, *, code: str = "malformed", field: str = "") -> None:
        super().__init__(message)
        self.code, self.field = code, field


class ChannelError(ConsilienceError):
    """A contribution that a channel cannot take."""


class RelayError(ConsilienceError):
    """What a relay refuses, by its code; trying again the same way will not help."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class RelayUnreachable(RelayError):
    """A relay that does not answer now, and may later: after so many seconds, where it said.

    may_have_arrived: the request had left, and may have arrived.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0, may_have_arrived: bool = False) -> None:
        super().__init__(message)
        self.retry_after, self.may_have_arrived = retry_after, may_have_arrived


class TrainingError(ConsilienceError):
    """A loss that is no number; names learner, round and term."""


class CheckpointError(ConsilienceError):
    """A checkpoint that is damaged or belongs to another run."""


class StorageError(ConsilienceError):
    """A disk that is full or a folder that cannot be written."""


def first_sentence(error: Exception) -> str:
    """The first sentence of what another library says."""
    return str(error).split("\n")[0].split(". ")[0]
