"""The same federations by Flower, pfl, fluke, a plain PyTorch loop and consilience: time, memory, accuracy, bytes.

    CONSILIENCE_DATA=FOLDER python benchmarks/peers/run.py

Workload: FedAvg and, where a library has it, FedProto; LeNet5 on MNIST, batch 32, Adam, one local epoch, no evaluation
before the last round. Each library has an environment of its own, made in the first run, and a program beside this
file. All programs of a size are started, one after the other, and then take turns of some rounds each while the others
wait, so that other load on the machine affects all; a time is the median of a program's turns.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.peers.environments import environment
from benchmarks.peers.program import Program, ProgramFailed

OURS = "consilience"
LIBRARIES = {
    OURS: ("consilience_work", ("fedavg", "fedproto")),
    "plain": ("plain_loop", ("fedavg", "fedproto")),
    "fluke": ("fluke_work", ("fedavg", "fedproto")),
    "pfl": ("pfl_work", ("fedavg",)),
    "flower": ("flower_work", ("fedavg",)),
}
"""Each library's program, and the methods it has."""


@dataclass(frozen=True)
class Size:
    learners: int
    samples: int
    turn: int  # rounds in a turn


SIZES = {"10x120": Size(10, 120, turn=10), "100x120": Size(100, 120, turn=2), "1000x12": Size(1000, 12, turn=1)}


@dataclass(frozen=True)
class Row:
    """What one library came to at one size."""

    library: str
    version: str
    seconds: float  # per round
    start_seconds: float  # with the first round
    peak_mb: float
    accuracy: float
    bytes: int | None  # up and down, per learner and round


class Programs:
    """The programs of one size; those that fail are left out, with a line that says why."""

    def __init__(self, work: dict[str, Any], libraries: Sequence[str], timeout: float) -> None:
        self.running: dict[str, Program] = {}
        self.times: dict[str, list[float]] = {library: [] for library in libraries}
        self.failed: list[str] = []
        for library in libraries:
            with self._noting(library):
                self.running[library] = Program(library, LIBRARIES[library][0], work, timeout)

    def take_turns(self, rounds: int) -> None:
        """A turn of each program."""
        for library, program in list(self.running.items()):
            with self._noting(library):
                self.times[library].append(program.turn(rounds))

    def rows(self) -> list[Row]:
        """What all programs report; they end."""
        found = []
        for library, program in list(self.running.items()):
            with self._noting(library):
                report = program.finish()
                seconds, start = statistics.median(self.times[library]), program.start_seconds
                counted = report.get("bytes")
                found.append(
                    Row(library, report["version"], seconds, start, program.peak_mb, report["accuracy"], counted)
                )
        return found

    def end(self) -> None:
        for program in self.running.values():
            program.end()

    @contextmanager
    def _noting(self, library: str) -> Iterator[None]:
        try:
            yield
        except (ProgramFailed, subprocess.CalledProcessError) as error:
            self.failed.append(f"{library}: {error}")
            if library in self.running:
                self.running.pop(library).end()


def measure_size(
    method: str, size: Size, turns: int, libraries: Sequence[str], timeout: float
) -> tuple[list[Row], list[str]]:
    """The rows of one size, and a line about each library that failed."""
    work = {
        "method": method,
        "learners": size.learners,
        "samples": size.samples,
        "rounds": 1 + turns * size.turn,
        "cores": len(os.sched_getaffinity(0)),
        "data": str(Path(os.environ["CONSILIENCE_DATA"]) / "mnist"),
    }
    programs = Programs(work, libraries, timeout)
    try:
        for _ in range(turns):
            programs.take_turns(size.turn)
        return programs.rows(), programs.failed
    finally:
        programs.end()


def table(method: str, size: Size, rows: Sequence[Row]) -> Iterator[str]:
    """Lines of the table of one size. The ratio is a library's seconds to consilience's."""
    ours = next((row.seconds for row in rows if row.library == OURS), None)
    for row in rows:
        cells = [
            method,
            f"{size.learners} x {size.samples}",
            f"{row.library} {row.version}",
            f"{row.seconds:.3f}",
            "" if ours is None else f"{row.seconds / ours:.2f}",
            f"{row.start_seconds:.1f}",
            f"{row.peak_mb:.0f}",
            f"{row.accuracy:.1f}",
            "" if row.bytes is None else f"{row.bytes:,}",
        ]
        yield "| " + " | ".join(cells) + " |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), help="libraries; all")
    parser.add_argument("--methods", nargs="+", choices=("fedavg", "fedproto"), default=["fedavg", "fedproto"])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="learners x samples; all")
    parser.add_argument("--turns", type=int, default=3, help="turns of each program, whose median is shown; 3")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a start or a turn may take; 600")
    parser.add_argument("--prepare", action="store_true", help="only make the environments")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # programs are ended before this one
    for library in given.only:
        environment(library)
    if given.prepare:
        return
    if not (Path(os.environ.get("CONSILIENCE_DATA", "")) / "mnist").is_dir():
        sys.exit("set CONSILIENCE_DATA to the folder that has mnist/train-images-idx3-ubyte.gz and the other three")
    print("| method | learners x samples | library | s/round | ratio | start s | peak MiB | accuracy | bytes |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    failed = []
    for method in given.methods:
        having = [library for library in given.only if method in LIBRARIES[library][1]]
        for size in map(SIZES.__getitem__, given.sizes):
            rows, why = measure_size(method, size, given.turns, having, given.timeout)
            print("\n".join(table(method, size, rows)), flush=True)
            failed += [f"{method} {size.learners} x {size.samples}, left out: {line}" for line in why]
    print("\n".join(["", *failed]))


if __name__ == "__main__":
    main()
