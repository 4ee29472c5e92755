"""How many requests one member may make."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from consilience.relay.rejections import Rejection

_REMEMBERED = 200_000  # members whose last requests are remembered; a forgotten member starts with a full bucket


class RateLimit:
    """A token bucket per member: `burst` requests at once, refilled by `rate` per second. A rate of 0 is no limit."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, burst, clock
        self._buckets: dict[int, tuple[float, float]] = {}  # requests left, and the time of that count

    def count(self, member: int) -> None:
        """Count a request; refuses it if there are too many, and says when to try again."""
        if not self.rate:
            return
        now = self.clock()
        left, then = self._buckets.pop(member, (float(self.burst), now))
        left = min(self.burst, left + (now - then) * self.rate)
        allowed = left >= 1
        self._buckets[member] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.pop(next(iter(self._buckets)))
        if not allowed:
            wait = max(math.ceil((1 - left) / self.rate), 1)
            message = f"{self.burst} requests at once and {self.rate:g} per second are allowed; try again in {wait} s"
            raise Rejection("over-quota", message, retry_after=wait)
