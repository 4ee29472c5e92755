"""Wrong tokens by address: after some, each further one is answered late, with 429. A valid token is always served."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from consilience.relay.rejections import Rejection

DELAY = 1.0
"""Seconds before the answer to a wrong token, once there have been too many."""
_REMEMBERED = 100_000  # addresses; one that is forgotten starts anew
_MINUTE = 60.0


class FailedLogins:
    """How many wrong tokens each address has sent: `most` are answered at once, and `most` more in every minute."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.clock = most, clock
        self._buckets: dict[str, tuple[float, float]] = {}  # failures left, and the time of that count

    def count(self, address: str) -> Rejection | None:
        """Count a wrong token; the answer to it if there were too many."""
        if not self.most:
            return None
        now, rate = self.clock(), self.most / _MINUTE
        left, then = self._buckets.pop(address, (float(self.most), now))
        left = min(self.most, left + (now - then) * rate)
        few = left >= 1
        self._buckets[address] = (left - 1 if few else left, now)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.pop(next(iter(self._buckets)))
        if few:
            return None
        wait = max(math.ceil((1 - left) / rate), 1)
        return Rejection(
            "too-many-logins",
            f"this token is unknown to this relay, and your address has sent more than {self.most} such tokens within "
            f"a minute; try again in {wait} s, with the token of your invitation",
            retry_after=wait,
        )
