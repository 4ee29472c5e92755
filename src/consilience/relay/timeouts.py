"""How long a relay waits for a client: the settings. `uvicorn_hooks` enforces them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from consilience.errors import ConfigurationError

HEAD_LIMIT = 16 * 1024
"""The most bytes a request may send before its body, and between two chunks of it."""


@dataclass(frozen=True)
class Timeouts:
    """Limits on how slow a client may be, in seconds; a client that keeps reading its answer has no time limit."""

    head: float = 10.0
    """To start a request after connecting, and to finish its head after the first byte; also for the TLS handshake."""
    idle: float = 15.0
    """Between two pieces of a body, and between two requests on one connection."""
    body: float = 30.0
    """For an entire body, plus its size divided by `rate`; also to finish a body that was answered before its end."""
    rate: float = 1024.0
    """The lowest speed of a body, in bytes per second."""
    answer: float = 60.0
    """Without reading any byte of an answer that waits to be sent."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"timeout {field.name} is {value!r}; it must be a finite number above 0")

    @property
    def shortest(self) -> float:
        """The shortest limit: a timer with this period is never late by more than one period."""
        return min(self.head, self.idle, self.body, self.answer)
