"""How much one member may ask of a relay in a while."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from consilience.relay.rejections import Rejection

_REMEMBERED = 200_000  # members whose last requests are remembered; those forgotten begin anew


class Quota:
    """A bucket for each member: `burst` requests at once, refilled by `rate` a second. A rate of 0 is no limit."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, burst, clock
        self._left: dict[int, tuple[float, float]] = {}  # what is left, and when that was so

    def take(self, member: int) -> None:
        """Count a request; refuses one too many, and says when there is room again."""
        if not self.rate:
            return
        now = self.clock()
        left, then = self._left.pop(member, (float(self.burst), now))
        left = min(self.burst, left + (now - then) * self.rate)
        enough = left >= 1
        self._left[member] = (left - 1 if enough else left, now)
        if len(self._left) > _REMEMBERED:
            self._left.pop(next(iter(self._left)))
        if not enough:
            wait = max(math.ceil((1 - left) / self.rate), 1)
            said = f"{self.burst} requests at once and {self.rate:g} a second are allowed; try again in {wait} s"
            raise Rejection("over-quota", said, retry_after=wait)
