"""Seconds by phase of a round, and when something that takes time itself is due again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from consilience.simulation.records.round_record import PHASES

_LONGEST = 600.0  # seconds


class PacedWork:
    """Work that is done every so many seconds, or less often where it would take more than a share of the time.

    At most ten minutes pass in between, however long it took.
    """

    def __init__(self, seconds: float, share: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.share, self.now = seconds, share, now
        self._at = -float("inf")

    @property
    def due(self) -> bool:
        """Whether it is time to do it; at first it is."""
        return self.now() > self._at

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around what is done: it is due again some time after its end."""
        started = self.now()
        yield
        ended = self.now()
        self._at = ended + max(self.seconds, min((ended - started) * (1 / self.share - 1), _LONGEST))


class Clock:
    """Laps by phase; each ends when the device has done its work."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.laps = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """The time since the last lap was spent on this phase."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
        now = time.perf_counter()
        self.laps[phase] += now - self._last
        self._last = now

    def each(self, rows: int) -> dict[str, np.ndarray]:
        """The laps shared evenly between rows that were worked on together."""
        return {phase: np.full(rows, seconds / rows) for phase, seconds in self.laps.items()}
