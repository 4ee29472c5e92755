"""The command `consilience leakage`: looks at runs one after the other, and keeps what is found in their folders."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from consilience.cli.terminal import Screen
from consilience.errors import CheckpointError, DataError, TrainingError
from consilience.leakage import tables
from consilience.leakage.findings import FILE, PICTURES, as_json, keep
from consilience.leakage.measure import Step, examine
from consilience.leakage.settings import Settings
from consilience.leakage.subject import chosen, modules_of
from consilience.report.page import ready, run_report
from consilience.report.runs import read_runs
from consilience.simulation.engines.choose import check_device
from consilience.simulation.records.export import SavedRun, read_kept


def look(screen: Screen, folders: Sequence[Path], settings: Settings, page: Path | None = None) -> None:
    """Examine the runs in folders of runs, comparisons and sweeps, show what is found, and write the page."""
    check_device(settings.device)
    if page is not None:
        ready(page)
    runs: dict[Path, str] = {}
    for run in read_runs(folders).runs:  # variants lie in one folder
        runs.setdefault(run.folder, run.label)
    for folder in runs:  # before the work
        with _named(folder):
            _refuse_unusable(read_kept(folder), settings)
    found = {}
    for folder, label in runs.items():
        with _named(folder), _watched(screen, label) as step:
            seen, pictures = examine(read_kept(folder), settings, step)
        keep(folder, seen, pictures)
        found[label] = seen
        if screen.json:
            print(json.dumps({"run": str(folder), **as_json(seen)}), flush=True)
        screen.say(f"kept in {folder / FILE}" + f", with pictures in {folder / PICTURES}" * bool(pictures))
    if not screen.json:
        _show(screen, found)
    if page is not None:
        screen.say(f"the page is {run_report(folders, page)}")


def _refuse_unusable(kept: SavedRun, settings: Settings) -> None:
    """Refuse a run that keeps no models, or models that have no such layer, before others are worked on."""
    for who in chosen(kept, settings.learners):
        modules_of(kept, who, settings.layers)


def _show(screen: Screen, found: tables.Found) -> None:
    """Print what was found as tables."""
    screen.section("What outputs of layers tell", tables.layers_text(found), tables.layers_rows(found))
    if rows := tables.means_rows(found):
        screen.section("What means of classes tell", tables.MEANS, rows)
    if rows := tables.members_rows(found):
        screen.section("Who was in a mean", tables.MEMBERS, rows)


@contextmanager
def _watched(screen: Screen, label: str) -> Iterator[Step]:
    """Shows how far a run has come, where somebody watches."""
    if not screen.err.is_terminal:
        yield lambda what, done, all_: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    together = sys.stdout.isatty()  # a pipe or a file must get what is written to it
    with Progress(
        *columns, TimeRemainingColumn(), console=screen.err, transient=True, redirect_stdout=together
    ) as progress:
        task = progress.add_task(label)

        def step(what: str, done: int, all_: int) -> None:
            progress.update(task, description=f"{label}: {what}", completed=done, total=all_)

        yield step


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Errors that say which run they are of."""
    try:
        yield
    except (CheckpointError, DataError, TrainingError) as error:
        raise type(error)(f"{folder}: {error}") from error
