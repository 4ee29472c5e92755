"""Sends the metrics of each round to a tracker, so that curves can be watched while a run is under way.

A curve is one federation of a run: a method, or a variant of it, and a seed. Its metrics are those of `metrics.jsonl`,
as means over learners. A resumed run sends its curves again from the first round, so that no round is missing or
repeated.
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
from consilience.extras import install_command
from consilience.files import report_write_errors
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.run import OnRound

log = logging.getLogger("consilience")

_MAX_NAME = 120  # characters of a variant's name; the name of a folder may have 255 bytes


class Tracker(Protocol):
    """Receives the rounds of runs."""

    def start(self, curves: Sequence[str]) -> None:
        """A run starts or resumes: its curves are sent from the first round on, whatever was sent before."""

    def add(self, curve: str, round_: int, values: Mapping[str, float]) -> None:
        """Add a round of a curve; metrics that no learner has are left out."""

    def flush(self) -> None:
        """Make the added rounds visible."""

    def close(self) -> None:
        """The last run is finished, or was stopped."""


class TensorBoard:
    """Event files under `tensorboard/`, one folder per curve."""

    def __init__(self, writer: Callable[..., Any], folder: Path) -> None:
        self.writer, self.folder = writer, folder / "tensorboard"
        self._open: dict[str, Any] = {}
        self._announced = False

    def start(self, curves: Sequence[str]) -> None:
        """Open new files and empty old ones; an open viewer discards what it has read."""
        self.close()
        if not self._announced:
            self._announced = True
            log.info("watch the curves with: tensorboard --logdir %s", shlex.quote(str(self.folder)))
        with report_write_errors(self.folder):
            for curve in curves:
                for old in (self.folder / curve).glob("events.out.tfevents.*"):
                    os.truncate(old, 0)  # not removed: an open viewer would wait for it forever
                self._open[curve] = self.writer(str(self.folder / curve), purge_step=0)

    def add(self, curve: str, round_: int, values: Mapping[str, float]) -> None:
        """One scalar per metric."""
        with report_write_errors(self.folder / curve):
            for name, value in values.items():
                self._open[curve].add_scalar(name, value, round_)

    def flush(self) -> None:
        """Flush the files."""
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
        raise ConfigurationError(f"--track tensorboard needs tensorboard: {install_command('track')}") from error
    return partial(TensorBoard, SummaryWriter)


TRACKERS: dict[str, Callable[[], Callable[[Path], Tracker]]] = {"tensorboard": _tensorboard}
"""By name: a function that checks that the tracker is installed, and returns its factory for a folder."""


def tracking(name: str | None) -> Callable[[Path, OnRound], AbstractContextManager[OnRound]]:
    """A context that sends rounds of the runs in a folder to a tracker, and then calls another `on_round`.

    Without a name, only the other is called. An unknown tracker, or one that is not installed, is an error.
    """
    if name is None:
        return lambda folder, on_round: nullcontext(on_round)
    if name not in TRACKERS:
        raise UnknownName("tracker", name, TRACKERS)
    return partial(_tracked, TRACKERS[name]())


@contextlib.contextmanager
def _tracked(make: Callable[[Path], Tracker], folder: Path, other: OnRound) -> Iterator[OnRound]:
    sender = TrackedRounds(make(folder), folder)

    def on_round(method: str, round_: int, total: int, history: History) -> None:
        sender.send(method, history)
        other(method, round_, total, history)

    with contextlib.closing(sender.tracker):
        yield on_round


class TrackedRounds:
    """Sends the rounds that a tracker does not have yet, of one run after the other."""

    def __init__(self, tracker: Tracker, folder: Path) -> None:
        self.tracker, self.folder = tracker, folder
        self._run: History | None = None
        self._curves: list[str] = []
        self._next = 0

    def send(self, method: str, history: History) -> None:
        """Send the rounds since the last call; of a new run, all of them."""
        if history is not self._run:
            self._run, self._curves, self._next = history, curve_names(method, history, self.folder), 0
            self.tracker.start(self._curves)
        for round_ in range(self._next, len(history.records)):
            for federation, curve in enumerate(self._curves):
                self.tracker.add(curve, round_, mean_metrics(history, round_, federation))
        self._next = len(history.records)
        self.tracker.flush()


def curve_names(method: str, history: History, folder: Path) -> list[str]:
    """A name for each federation, as a path: the run, or the method if there is one run; the variant; the seed."""
    run = _path_safe(method if history.folder in (None, folder) else history.folder.name)
    runs = [f"{run}/{variant}" for variant in _variants(history)] or [run]
    return [f"{each}/seed-{seed}" for each, seed in product(runs, history.seeds)]


def _variants(history: History) -> list[str]:
    """The settings of each variant as text, or numbers if the run has no folder; empty if there are no variants."""
    if history.folder is None:
        return [f"variant-{i}" for i in range(history.variants)] if history.variants > 1 else []
    changes = RunFolder(history.folder).config.variants
    return _distinct([",".join(f"{key}={value}" for key, value in each.items()) for each in changes])


def _distinct(names: Sequence[str]) -> list[str]:
    short = [_path_safe(name)[:_MAX_NAME] for name in names]
    return short if len(set(short)) == len(short) else [f"{i}-{name}" for i, name in enumerate(short, start=1)]


def _path_safe(name: str) -> str:
    return re.sub(r"[^\w.,+=-]+", "-", name)


def mean_metrics(history: History, round_: int, federation: int) -> dict[str, float]:
    """The metrics of a federation in a round: the mean over the learners that have each."""
    found = {}
    numbers = {name: values for name, values in history.records[round_].items() if not name.startswith("confusion.")}
    for name, values in numbers.items():
        known = values[federation][np.isfinite(values[federation])]
        if known.size:
            found[name] = float(known.mean())
    return found
