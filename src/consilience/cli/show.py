"""`consilience show` and `consilience report`: the results of runs, in the terminal and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.options import Json


def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, a comparison or a sweep")],
    json_: Json = False,
) -> None:
    """Show the results of a run, a comparison or a sweep."""
    from consilience.cli.terminal import Screen
    from consilience.simulation.compare import read_summaries
    from consilience.simulation.records.run_folder import resume_command
    from consilience.simulation.sweep_plan import SWEEP_PLAN, read_sweep

    screen = Screen(json_)
    if (folder / SWEEP_PLAN).is_file():
        plan = read_sweep(folder)
        if rows := plan.summaries():
            screen.show_sweep(rows, folder)
        if len(rows) < len(plan.settings):
            finished = f"{len(rows)} of {len(plan.settings)} settings are finished"
            screen.say(f"{finished}; resume with: {resume_command(folder)}")
        return
    found = read_summaries(folder)
    for summary in found:
        screen.each(summary)
    screen.table(found)
    screen.curves(folder)
    for summary in found:
        if not summary["finished"]:
            stopped = f"{summary['method']!r} was stopped after round {summary['rounds']}"
            screen.say(f"{stopped}; resume with: {resume_command(folder)}")


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
