"""When to try a relay again that could not be reached: exponential backoff with jitter."""

from __future__ import annotations

import logging
import random
import time

from consilience.errors import RelayUnreachable, WireError

_LONGEST_WAIT = 60.0
_LONGEST_RETRY_AFTER = 600.0  # a relay that asks for more is tried again after this many seconds
log = logging.getLogger("consilience.peer")


class Backoff:
    """How long to wait before the next attempt: twice as long after each failure, plus or minus half of it."""

    def __init__(self, first: float = 0.5, longest: float = _LONGEST_WAIT) -> None:
        self.first, self.longest = first, longest
        self.failures, self.until = 0, 0.0
        self._random = random.Random()  # a generator of its own: the caller's random numbers stay as they are

    def failed(self, at_least: float = 0.0) -> None:
        """Count a failed attempt. at_least: the seconds that the relay asks to wait (Retry-After)."""
        wait = min(self.first * 2**self.failures, self.longest) * self._random.uniform(0.5, 1.5)
        asked = min(at_least, _LONGEST_RETRY_AFTER)
        self.failures, self.until = min(self.failures + 1, 30), time.monotonic() + max(wait, asked)

    def report(self, error: RelayUnreachable | WireError) -> None:
        """Count a failed attempt and log it: the first of a series as a warning."""
        level = logging.INFO if self.failures else logging.WARNING
        self.failed(getattr(error, "retry_after", 0.0))
        log.log(level, "%s; next attempt in %.1f s at the earliest", error, self.left)

    def succeeded(self) -> None:
        """Count a successful attempt: the next one need not wait."""
        self.failures, self.until = 0, 0.0

    @property
    def left(self) -> float:
        """Seconds until the next attempt is allowed."""
        return max(self.until - time.monotonic(), 0.0)

    def allows(self, end: float) -> bool:
        """Whether an attempt is allowed before the time `end`."""
        return time.monotonic() + self.left < end

    def wait_until_allowed(self, end: float) -> bool:
        """Sleep until an attempt is allowed; False, at once, where that is after the time `end`."""
        left = end - time.monotonic()
        if left <= 0 or self.left > left:
            return False
        time.sleep(self.left)
        return True


def seconds_left(end: float) -> float:
    """Seconds until the time `end`, and at least enough for one short request."""
    return max(end - time.monotonic(), 0.05)
