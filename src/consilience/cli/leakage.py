"""`consilience leakage`: what a run's models reveal of the data they were trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.options import Json


def leakage(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="folders of runs, comparisons or sweeps with saved models")
    ],
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="a module of the models, features, or cut; may be repeated (default: the cut, else the features)",
        ),
    ] = None,
    learners: Annotated[int, typer.Option(min=1, help="examine only the first N learners")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="epochs for which an attacker trains")] = 30,
    auxiliary: Annotated[
        int | None, typer.Option(min=1, help="test samples an attacker has (default: half of them, 2000 at most)")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    json_: Json = False,
    out: Annotated[Path | None, typer.Option(help="write a page about the runs, as `consilience report` does")] = None,
) -> None:
    """Measure what a run's models reveal of the data they were trained on; saved in the run's folder, for `report`."""
    from consilience.cli.leakage_runs import examine_runs
    from consilience.cli.terminal import Screen
    from consilience.leakage.settings import LeakageSettings

    screen, settings = Screen(json_), LeakageSettings(tuple(layer or ()), learners, epochs, auxiliary, device)
    try:
        examine_runs(screen, folders, settings, out)
    except KeyboardInterrupt:
        screen.say("stopped; the results of earlier runs are saved")
        raise typer.Exit(130) from None
