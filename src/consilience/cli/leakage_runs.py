"""The command `consilience leakage`: measure the leakage of runs one after the other, and save it in their folders."""

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
from consilience.leakage.examined_learner import resolve_layers, select_learners
from consilience.leakage.measure import OnProgress, measure_leakage
from consilience.leakage.results import FILE, PICTURES, leakage_as_json, write_leakage
from consilience.leakage.settings import LeakageSettings
from consilience.report.page import check_page, write_report
from consilience.report.runs import read_runs
from consilience.simulation.engines.choose import check_device
from consilience.simulation.records.export import SavedRun, read_saved_run


def examine_runs(screen: Screen, folders: Sequence[Path], settings: LeakageSettings, page: Path | None = None) -> None:
    """Examine the runs in folders of runs, comparisons and sweeps, show the results, and write the page."""
    check_device(settings.device)
    if page is not None:
        check_page(page)
    runs: dict[Path, str] = {}
    for run in read_runs(folders).runs:  # variants share a folder
        runs.setdefault(run.folder, run.label)
    for folder in runs:  # refused before any run is examined
        with _named(folder):
            _refuse_unusable(read_saved_run(folder), settings)
    found = {}
    for folder, label in runs.items():
        with _named(folder), _show_progress(screen, label) as step:
            leakage, pictures = measure_leakage(read_saved_run(folder), settings, step)
        write_leakage(folder, leakage, pictures)
        found[label] = leakage
        if screen.json:
            print(json.dumps({"run": str(folder), **leakage_as_json(leakage)}), flush=True)
        screen.say(f"saved in {folder / FILE}" + f", with pictures in {folder / PICTURES}" * bool(pictures))
    if not screen.json:
        _show(screen, found)
    if page is not None:
        screen.say(f"the page is {write_report(folders, page)}")


def _refuse_unusable(run: SavedRun, settings: LeakageSettings) -> None:
    """Refuse a run without saved models, or whose models do not have the layers."""
    for who in select_learners(run, settings.learners):
        resolve_layers(run, who, settings.layers)


def _show(screen: Screen, found: tables.LeakageByRun) -> None:
    """Print the results as tables."""
    screen.section("Leakage of layer outputs", tables.layers_text(found), tables.layers_rows(found))
    if rows := tables.means_rows(found):
        screen.section("Leakage of class means", tables.MEANS, rows)
    if rows := tables.membership_rows(found):
        screen.section("Membership inference", tables.MEMBERSHIP, rows)


@contextmanager
def _show_progress(screen: Screen, label: str) -> Iterator[OnProgress]:
    """Show the progress on a run, if standard error is a terminal."""
    if not screen.err.is_terminal:
        yield lambda what, done, all_: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    to_terminal = sys.stdout.isatty()  # output to a pipe or a file is left as it is
    with Progress(
        *columns, TimeRemainingColumn(), console=screen.err, transient=True, redirect_stdout=to_terminal
    ) as progress:
        task = progress.add_task(label)

        def step(what: str, done: int, all_: int) -> None:
            progress.update(task, description=f"{label}: {what}", completed=done, total=all_)

        yield step


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Put the run's folder in front of error messages."""
    try:
        yield
    except (CheckpointError, DataError, TrainingError) as error:
        raise type(error)(f"{folder}: {error}") from error
