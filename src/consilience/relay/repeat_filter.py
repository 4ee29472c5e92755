"""Keeps a log short when the same thing happens again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

_SECONDS = 60.0
_KEYS = 100  # different things that are logged within that time


class RepeatFilter:
    """Lets one line through per key and minute, and counts the others; at most a hundred keys a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Hashable, tuple[float, int]] = {}  # when it was let through, and how often it was held since

    def count(self, key: Hashable) -> int | None:
        """How many were held back since the last line with this key; None if this one is held back too."""
        now = self._clock()
        since, held = self._known.get(key, (-_SECONDS + now, 0))
        if now - since < _SECONDS:
            self._known[key] = since, held + 1
            return None
        if key not in self._known and len(self._known) >= _KEYS:
            self._known = {k: (t, n) for k, (t, n) in self._known.items() if now - t < _SECONDS}
            if len(self._known) >= _KEYS:
                return None
        self._known[key] = now, 0
        return held
