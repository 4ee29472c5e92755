"""`consilience reproduce`: reproduce a published table or figure."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.options import Track
from consilience.errors import ConfigurationError


def reproduce(
    name: Annotated[str | None, typer.Argument(help="a table or figure by name; see --list")] = None,
    list_: Annotated[bool, typer.Option("--list", help="list what can be reproduced")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="a short version for two cores")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="seeds of each cell (default: as many as stated)")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    data_dir: Annotated[str | None, typer.Option(help="folder with the files of the data sets")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="only these cells, such as task=MNIST; may be repeated",
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="precision of the models: auto, float32, bf16 or float64")] = "auto",
    cluster: Annotated[
        str | None,
        typer.Option(help="run cells at the same time on a Ray cluster: local, auto or HOST:PORT"),
    ] = None,
    saved: Annotated[bool, typer.Option("--saved", help="show the saved cells without running any")] = False,
    out: Annotated[Path | None, typer.Option(help="folder for cells and results (default: reproduced/NAME)")] = None,
    track: Track = None,
) -> None:
    """Reproduce a published table or figure; runs that are finished already are not run again."""
    from consilience.cli.terminal import Screen
    from consilience.config.overrides import split_setting
    from consilience.errors import UnknownName
    from consilience.papers import REPRODUCTIONS, Scale
    from consilience.papers.run import run_reproduction, write_reproduction_page
    from consilience.presentation.tables import rows_table
    from consilience.report.tracking import tracking

    screen, tracked = Screen(False), tracking(track)
    if list_ or name is None:
        screen.print(rows_table([{"name": each.name, "what": each.summary} for each in REPRODUCTIONS.values()]))
        return
    if name not in REPRODUCTIONS:
        raise UnknownName("reproduction", name, REPRODUCTIONS)
    folder = out or Path("reproduced") / (f"{name}-quick" if quick else name)
    selected = [split_setting(text, "no label of cells; write LABEL=VALUE, such as task=MNIST") for text in only or ()]
    scale = Scale(quick, seeds, device, data_dir, selected, precision, cluster)
    try:
        with tracked(folder, screen.on_round) as on_round:
            found = run_reproduction(REPRODUCTIONS[name], scale, folder, on_round, saved)
    except KeyboardInterrupt:
        found = run_reproduction(REPRODUCTIONS[name], scale, folder, saved_only=True)
    for section in found.sections:
        screen.section(section.heading, section.text, section.table)
    command = shlex.join(["consilience", *sys.argv[1:]])
    try:
        page = write_reproduction_page(REPRODUCTIONS[name], found.sections, folder, command)
        screen.say(f"the page is {page}")
    except ConfigurationError as error:  # the packages that draw it are optional
        screen.say(f"no page: {error}")
    screen.say(f"saved in {folder}")
    if found.missing and not saved:
        screen.say("stopped; run the same command to resume")
        raise typer.Exit(130)
