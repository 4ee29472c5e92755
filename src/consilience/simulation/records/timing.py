"""Seconds by phase of a round."""

from __future__ import annotations

import time

import numpy as np
import torch

from consilience.simulation.records.round_record import PHASES


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
