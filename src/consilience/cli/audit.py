"""`consilience audit`: attack the uploads and models of a run, and bound its epsilon from below."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.options import Json, Set


def audit(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="folders of runs, or TOML files with settings; both are run again"),
    ],
    shadows: Annotated[
        int, typer.Option(help="shadow federations: each is trained on a random half of every learner's samples")
    ] = 32,
    of: Annotated[str, typer.Option(help="what is attacked: uploads, model or both")] = "both",
    trials: Annotated[
        int, typer.Option(help="federations for the lower bound of epsilon, each run three times; 0 leaves it out")
    ] = 64,
    set_: Set = None,
    json_: Json = False,
    out: Annotated[Path | None, typer.Option(help="write a page about the runs, as `consilience report` does")] = None,
) -> None:
    """Attack what a run uploads and its models: whose samples were trained on? Saved in its folder, for `report`."""
    from consilience.cli.audit_runs import audit_runs
    from consilience.cli.terminal import Screen
    from consilience.leakage.audit import AuditSettings

    screen, settings = Screen(json_), AuditSettings(shadows, of, trials)  # type: ignore[arg-type]
    try:
        audit_runs(screen, runs, settings, set_ or (), out)
    except KeyboardInterrupt:
        screen.say("stopped; the results of earlier runs are saved")
        raise typer.Exit(130) from None
