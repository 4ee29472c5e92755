"""How much memory a simulation uses: all its processes together, and its device."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from pathlib import Path

import torch


def memory_mb(processes: Iterable[int]) -> float:
    """MiB used by these processes together; memory they share is counted once.

    Linux reports the proportional share of each process; on other systems it is the peak of this process.
    """
    try:
        return sum(_proportional_kb(p) for p in processes) / 1024
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def device_peak_mb(device: str) -> float | None:
    """The most MiB of a GPU's memory that tensors of this process have used; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    return float(torch.cuda.max_memory_allocated(device)) / 2**20


def _proportional_kb(process: int) -> int:
    for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise OSError(f"/proc/{process}/smaps_rollup has no line 'Pss:'")
