"""A library's program while it runs: its turns, its memory, its report."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import FOLDER, HERE, environment, variables

_SAMPLING = 0.25  # seconds between looks at the memory, while the program starts and runs its first round


class ProgramFailed(Exception):
    """A program that ended, or took too long, before its work was done."""


class Program:
    """One library at one size. Nothing of it runs between its turns."""

    def __init__(self, library: str, module: str, work: dict[str, Any], timeout: float) -> None:
        self.library, self.timeout = library, timeout
        self._mark = uuid.uuid4().hex  # all its processes inherit it
        self._log = FOLDER / f"{library}-{work['method']}-{work['learners']}.log"
        python = environment(library)
        self.peak_mb = 0.0
        started = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", f"benchmarks.peers.{module}", json.dumps(work)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=HERE.parents[1],
                env=variables(self._mark),
                start_new_session=True,
            )
        try:
            self._read(sampling=True)
        except BaseException:
            self.end()
            raise
        self.start_seconds = time.perf_counter() - started  # with the first round

    def turn(self, rounds: int) -> float:
        """Seconds per round of this many rounds."""
        started = time.perf_counter()
        self._send(rounds)
        self._read()
        seconds = time.perf_counter() - started
        self._look_at_memory()
        return seconds / rounds

    def finish(self) -> dict[str, Any]:
        """What the program reports after its last round: version, accuracy, and bytes where the library counts them."""
        self._send(0)
        report = self._read()
        self._process.wait(self.timeout)
        return report

    def end(self) -> None:
        """End all processes of the program that are still there."""
        for process in self._processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def _send(self, rounds: int) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{rounds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProgramFailed(self._why()) from None

    def _read(self, sampling: bool = False) -> dict[str, Any]:
        assert self._process.stdout is not None
        until = time.monotonic() + self.timeout
        while not select.select([self._process.stdout], [], [], _SAMPLING if sampling else self.timeout)[0]:
            if time.monotonic() > until:
                raise ProgramFailed(f"no word from {self.library} in {self.timeout:g} s; see {self._log}")
            self._look_at_memory()
        line = self._process.stdout.readline()
        if not line:
            raise ProgramFailed(self._why())
        found: dict[str, Any] = json.loads(line)
        return found

    def _why(self) -> str:
        last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return f"{self.library} ended before its work was done: {' '.join(last)}; see {self._log}"

    def _look_at_memory(self) -> None:
        self.peak_mb = max(self.peak_mb, sum(_proportional_kb(p) for p in self._processes()) / 1024)

    def _processes(self) -> list[int]:
        """All processes of the program, whoever their parent is now."""
        wanted = f"PEERS_BENCHMARK={self._mark}".encode()
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if wanted in _environment(path)]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # another user's, or gone
        return b""


def _proportional_kb(process: int) -> int:
    """The memory of a process; what several share is divided among them."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass  # gone
    return 0
