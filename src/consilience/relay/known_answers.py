"""Which kept answer belongs to a request, found without reading the request's query again."""

from __future__ import annotations

import re
from typing import NamedTuple
from weakref import ref

from consilience.relay.snapshot import Snapshot

KNOWN_ANSWER = "known_answer"
"""In the state of an application's lifespan: a function of a request's scope, called before there is a task for it. It
returns the answer to a request that was made before and counts the request, or returns None."""
_REMEMBERED = 1024  # queries
_LONGEST = 512  # bytes of a query
_ROUND = re.compile(rb"(?:^|&)round=\d{1,15}(?=&|$)")


class _Known(NamedTuple):
    snapshot: ref[Snapshot]  # weak: its arrays must not outlive it
    key: str


class KnownAnswers:
    """By query, the key in the cache of an answer without random draws: it is the same for all members and rounds."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], _Known] = {}
        self._queries: set[bytes] = set()

    def may_have(self, query: bytes) -> bool:
        """Whether a query was remembered for some federation; one that draws from a pool never is."""
        return _without_round(query) in self._queries

    def find(self, federation: int, query: bytes, snapshot: Snapshot) -> str | None:
        """The key of the answer to a query, if the federation has not changed since it was remembered."""
        known = self._known.get((federation, _without_round(query)))
        return known.key if known is not None and known.snapshot() is snapshot else None

    def remember(self, federation: int, query: bytes, snapshot: Snapshot, key: str) -> None:
        """Remember the key of the answer to a query, which has been checked."""
        if len(query) > _LONGEST:
            return
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
            self._queries.clear()
        self._known[federation, _without_round(query)] = _Known(ref(snapshot), key)
        self._queries.add(_without_round(query))


def _without_round(query: bytes) -> bytes:
    """The query without its round; of two rounds, which are refused, one is left."""
    return _ROUND.sub(b"", query, count=1)
