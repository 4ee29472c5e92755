"""Every error that this library raises on purpose, in one tree.

ConsilienceError
├── ConfigurationError      a setting, or a combination of settings, that cannot work
│   └── UnknownName         an unknown method, data set, model or key; names the nearest known one
├── DataError               a data file that is missing, damaged or not in its format
├── WireError               a message that does not match its schema
├── ChannelError            a contribution that a channel cannot accept
├── RelayError              a relay refused a request
│   └── RelayUnreachable    a relay does not answer now; trying again later may help
├── Rejection               inside the relay: a request it refuses (`relay.rejections`)
├── TrainingError           a loss that is NaN or infinite
├── ClusterError            a cluster that does not answer, or has too little of what a run takes
├── CheckpointError         a checkpoint that is damaged, of another layout or of another run
└── StorageError            a disk that is full, or a folder that cannot be written

A message names the thing, the value received, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ConsilienceError(Exception):
    """The root of the tree: catch this to catch all of them."""


class ConfigurationError(ConsilienceError):
    """A setting, or a combination of settings, that cannot work."""


class UnknownName(ConfigurationError):
    """An unknown name; the message lists the known ones, and the nearest of them."""

    def __init__(self, kind: str, name: str, known: Iterable[str], of: str = "", also: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)  # a slip
        if not near:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            near.sort(key=lambda each: not _shortens(name, each))  # stable: of equals the closest is first
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = f"Known: {', '.join(names) or 'none'}"
        super().__init__(f"unknown {kind} {name!r}{of and f' of {of}'}.{hint} {listed}{also and f'; {also}'}")
        self.kind, self.name, self.nearest = kind, name, near[0] if near else None
        self._given = kind, name, tuple(names), of, also

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownName, self._given  # made again from its arguments: it may come from a worker process


class DataError(ConsilienceError):
    """A data file that is missing, damaged or not in its format."""


class WireError(ConsilienceError):
    """A message that does not match its schema; nothing of it was used.

    code: what is wrong, for programs (`wire.layout.CODES` lists those of a body). field: the tensor at fault.
    """

    def __init__(self, message: str, *, code: str = "malformed", field: str = "") -> None:
        super().__init__(message)
        self.code, self.field = code, field


class ChannelError(ConsilienceError):
    """A contribution that a channel cannot accept."""


class RelayError(ConsilienceError):
    """A relay refused a request; the same request would be refused again.

    code: the relay's code for the reason (docs/protocol.md lists them).
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class RelayUnreachable(RelayError):
    """A relay does not answer now; trying again later may help.

    retry_after: seconds to wait, if the relay named them. may_have_arrived: the request was sent, and the relay may
    have accepted it. was_sent: some of the request may have left this machine, accepted or not.
    """

    def __init__(
        self, message: str, *, retry_after: float = 0.0, may_have_arrived: bool = False, was_sent: bool = True
    ) -> None:
        super().__init__(message)
        self.retry_after, self.may_have_arrived, self.was_sent = retry_after, may_have_arrived, was_sent


class TrainingError(ConsilienceError):
    """A loss that is NaN or infinite; the message names learner, round and term."""


class ClusterError(ConsilienceError):
    """A cluster that does not answer, or has too little of what a run takes."""


class CheckpointError(ConsilienceError):
    """A checkpoint that is damaged, of another layout or of another run."""


class StorageError(ConsilienceError):
    """A disk that is full, or a folder that cannot be written."""


def _shortens(short: str, name: str) -> bool:
    """Whether a name has all letters of another one, in their order, as of an abbreviation."""
    letters = iter(name)
    return all(letter in letters for letter in short)


def first_sentence(error: Exception) -> str:
    """The first sentence of another library's message."""
    return str(error).split("\n")[0].split(". ")[0]
