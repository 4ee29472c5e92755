"""`consilience show` and `consilience report`: the results of runs, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.options import Against, Json

if TYPE_CHECKING:
    from consilience.cli.terminal import Screen
    from consilience.simulation.records.run_folder import RunFolder


def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, a comparison or a sweep")],
    against: Against = None,
    json_: Json = False,
) -> None:
    """Show the results of a run, a comparison or a sweep."""
    from consilience.cli.terminal import Screen
    from consilience.presentation.score_words import metric_of
    from consilience.simulation.compare import compared_summaries, run_folders
    from consilience.simulation.sweep_plan import SWEEP_PLAN, read_sweep

    screen = Screen(json_)
    if (folder / SWEEP_PLAN).is_file():
        plan = read_sweep(folder)
        rows, runs = plan.summaries(), [run for run, _, _ in plan.runs() if (run.path / "config.toml").exists()]
        if rows:
            screen.show_sweep(rows, folder)
        finished = f"{len(rows)} of {len(plan.settings)} settings are finished"
        _say_unfinished(screen, folder, runs, finished if len(rows) < len(plan.settings) else "")
        return
    found = compared_summaries(folder, against)
    for summary in found:
        screen.each(summary)
    if found:
        screen.table(found)
    screen.curves(folder, metric_of(found))
    _say_unfinished(screen, folder, run_folders(folder))


def _say_unfinished(screen: Screen, folder: Path, runs: Sequence[RunFolder], finished: str = "") -> None:
    """Say which runs are running or were stopped, and how to resume; finished: how much of a sweep is."""
    from consilience.simulation.records.run_folder import resume_command
    from consilience.simulation.records.run_lock import read_owner, run_status

    status = [(run.config.method.label, run_status(run)) for run in runs]
    for label, running in status:
        if running.state == "running":
            screen.say(f"{label!r} is {running.describe()}")
    if read_owner(folder) or any(each.state == "running" for _, each in status):
        if finished:
            screen.say(finished)
        return
    stopped = [f"{label!r} was stopped after round {each.round}" for label, each in status if each.state == "stopped"]
    for text in [finished] if finished else stopped:
        screen.say(f"{text}; resume with: {resume_command(folder)}")


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="folders of runs, comparisons, sweeps or reproductions")
    ],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="folder for the figures as SVG and PNG")] = None,
) -> None:
    """Write one page with the tables and figures of runs; it opens anywhere, without a network."""
    from consilience.report.page import write_report

    print(f"the page is {write_report(folders, out, figures)}")
