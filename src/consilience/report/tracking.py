"""Rounds handed on to a tracker as they are played, so that curves can be watched while a run is under way.

A curve is one federation of a run: a method, or a variant of it, and a seed. Its metrics are those of `metrics.jsonl`,
as means over learners. A run that goes on tells its curves from the first round again, so that none is missing or there
twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from consilience.errors import ConfigurationError, UnknownName
from consilience.files import report_write_errors
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.run import OnRound

log = logging.getLogger("consilience")

_LONGEST = 120  # characters of a variant's name; a folder's may have 255 bytes


class Tracker(Protocol):
    """Takes the rounds of runs; what else it needs, it was made with."""

    def begin(self, curves: Sequence[str]) -> None:
        """A run begins or goes on: its curves are told from the first round, whatever was told of them before."""

    def add(self, curve: str, round_: int, values: Mapping[str, float]) -> None:
        """A round of a curve; a metric that nobody has in it is not there."""

    def show(self) -> None:
        """Whoever watches should see now what was added."""

    def close(self) -> None:
        """The last run is over, or was stopped."""


class TensorBoard:
    """Event files under `tensorboard/`, in one folder a curve."""

    def __init__(self, writer: Callable[..., Any], folder: Path) -> None:
        self.writer, self.folder = writer, folder / "tensorboard"
        self._open: dict[str, Any] = {}
        self._told = False

    def begin(self, curves: Sequence[str]) -> None:
        """New files, and nothing in old ones; a viewer that is open is told to forget what it has read."""
        self.close()
        if not self._told:
            self._told = True
            log.info("watch the curves with: tensorboard --logdir %s", shlex.quote(str(self.folder)))
        with report_write_errors(self.folder):
            for curve in curves:
                for old in (self.folder / curve).glob("events.out.tfevents.*"):
                    os.truncate(old, 0)  # not removed: a viewer that had it open would wait for it for ever
                self._open[curve] = self.writer(str(self.folder / curve), purge_step=0)

    def add(self, curve: str, round_: int, values: Mapping[str, float]) -> None:
        """One scalar a metric."""
        with report_write_errors(self.folder / curve):
            for name, value in values.items():
                self._open[curve].add_scalar(name, value, round_)

    def show(self) -> None:
        """Bring the files up to date."""
        with report_write_errors(self.folder):
            for writer in self._open.values():
                writer.flush()

    def close(self) -> None:
        """Close the files."""
        with report_write_errors(self.folder):
            while self._open:
                self._open.popitem()[1].close()


def _tensorboard() -> Callable[[Path], Tracker]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigurationError("--track tensorboard needs tensorboard: pip install consilience[track]") from error
    return partial(TensorBoard, SummaryWriter)


TRACKERS: dict[str, Callable[[], Callable[[Path], Tracker]]] = {"tensorboard": _tensorboard}
"""By name: what looks whether the tracker can work, and gives what makes one for a folder."""


def tracking(name: str | None) -> Callable[[Path, OnRound], AbstractContextManager[OnRound]]:
    """What tells a tracker of the runs in a folder, and then whoever else is to be told; with no name only them.

    Refuses a tracker that nobody knows or that is not installed.
    """
    if name is None:
        return lambda folder, told: nullcontext(told)
    if name not in TRACKERS:
        raise UnknownName("tracker", name, TRACKERS)
    return partial(_tracked, TRACKERS[name]())


@contextlib.contextmanager
def _tracked(make: Callable[[Path], Tracker], folder: Path, told: OnRound) -> Iterator[OnRound]:
    rounds = TrackedRounds(make(folder), folder)

    def on_round(method: str, round_: int, total: int, history: History) -> None:
        rounds.hand_on(method, history)
        told(method, round_, total, history)

    with contextlib.closing(rounds.tracker):
        yield on_round


class TrackedRounds:
    """Hands on the rounds that the tracker does not have yet, of one run after the other."""

    def __init__(self, tracker: Tracker, folder: Path) -> None:
        self.tracker, self.folder = tracker, folder
        self._run: History | None = None
        self._curves: list[str] = []
        self._next = 0

    def hand_on(self, method: str, history: History) -> None:
        """Everything that has happened in a run since the last time; of a run not seen before, all of it."""
        if history is not self._run:
            self._run, self._curves, self._next = history, curves_of(method, history, self.folder), 0
            self.tracker.begin(self._curves)
        for round_ in range(self._next, len(history.records)):
            for federation, curve in enumerate(self._curves):
                self.tracker.add(curve, round_, means(history, round_, federation))
        self._next = len(history.records)
        self.tracker.show()


def curves_of(method: str, history: History, folder: Path) -> list[str]:
    """A name for each federation, as a path: the run's where there are several, else the method's; variant; seed."""
    run = _plain(method if history.folder in (None, folder) else history.folder.name)
    runs = [f"{run}/{variant}" for variant in _variants(history)] or [run]
    return [f"{each}/seed-{seed}" for each, seed in product(runs, history.seeds)]


def _variants(history: History) -> list[str]:
    """Each variant's settings in words, none where there are no variants; numbers where the run is not kept."""
    if history.folder is None:
        return [f"variant-{i}" for i in range(history.variants)] if history.variants > 1 else []
    changes = RunFolder(history.folder).config.variants
    return _told_apart([",".join(f"{key}={value}" for key, value in each.items()) for each in changes])


def _told_apart(names: Sequence[str]) -> list[str]:
    short = [_plain(name)[:_LONGEST] for name in names]
    return short if len(set(short)) == len(short) else [f"{i}-{name}" for i, name in enumerate(short, start=1)]


def _plain(name: str) -> str:
    return re.sub(r"[^\w.,+=-]+", "-", name)


def means(history: History, round_: int, federation: int) -> dict[str, float]:
    """What a federation's learners have in a round, each metric as the mean over those that have it."""
    found = {}
    for name, values in history.records[round_].items():
        known = values[federation][np.isfinite(values[federation])]
        if known.size:
            found[name] = float(known.mean())
    return found
