"""The lock of a run folder: one process writes, others can see that it does and how far the run is.

The lock ends with its process, however that ends, so a folder whose owner died is free again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from consilience.files import is_locked, lock_file, report_write_errors
from consilience.simulation.records.run_folder import LOCK, RunFolder

_TAIL = 1 << 16  # bytes at the end of metrics.jsonl that are read for the last round


@dataclass(frozen=True)
class RunStatus:
    """Whether a run is finished, running or stopped, and after which round."""

    state: str
    round: int
    rounds: int
    owner: str = ""

    def describe(self) -> str:
        """Such as "running, round 40 of 900 (process 4711 on ward-7)"."""
        if self.state == "finished":
            return f"finished, {self.rounds} rounds"
        by = f" ({self.owner})" if self.owner else ""
        return f"{self.state}, round {self.round} of {self.rounds}{by}"


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Be the only process that writes a folder; refused with the owner's name if another one does."""
    owner = read_owner(folder) or "another process"
    running = f"{folder} is being written by {owner}; wait until it ends, or stop it with Ctrl-C, and resume it then"
    with report_write_errors(folder):
        lock = lock_file(folder / LOCK, running)
    with lock:
        with report_write_errors(folder / LOCK):
            lock.truncate(0)
            lock.write(json.dumps({"process": os.getpid(), "host": platform.node()}).encode())
            lock.flush()
        yield


def read_owner(folder: Path) -> str | None:
    """The process that is writing a folder, such as "process 4711 on ward-7", or None."""
    if not is_locked(folder / LOCK):
        return None
    try:
        found = json.loads((folder / LOCK).read_bytes())
        return f"process {found['process']} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has the lock and has not written its name yet
        return "another process"


def run_status(run: RunFolder) -> RunStatus:
    """How far a run is, read from its folder while it may be running."""
    rounds, owner, result = run.config.training.rounds, read_owner(run.path), run.result
    if owner is not None:
        return RunStatus("running", last_round(run), rounds, owner)
    if result is not None and result["finished"]:
        return RunStatus("finished", rounds, rounds)
    return RunStatus("stopped", last_round(run), rounds)


def last_round(run: RunFolder) -> int:
    """The last round with a complete line of metrics; 0 if there is none."""
    try:
        with run.metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["round"])
    return 0
