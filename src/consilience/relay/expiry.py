"""Times at which tokens expire, in seconds since 1970 by the machine's clock; 0 is never."""

from __future__ import annotations

import datetime
import math
import time

from consilience.errors import ConfigurationError

DAY = 86400
_LONGEST = 36500  # days


def expiry(days: float | None) -> int:
    """When a token that is made now expires."""
    if days is None:
        return 0
    if not (math.isfinite(days) and 0 < days <= _LONGEST):
        raise ConfigurationError(
            f"days is {days:g}; a token is valid for more than 0 days, at most {_LONGEST}, or without --days for ever"
        )
    return int(time.time() + days * DAY)


def format_time(seconds: int) -> str | None:
    """A time as ISO 8601, UTC; None for never."""
    if not seconds:
        return None
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # a clock that was far off
        return f"{seconds} s after 1970"
