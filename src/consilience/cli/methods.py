"""`consilience methods`: list the methods."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from consilience.cli.options import Json


def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]...", help="only these: NAME or FILE.py:NAME, with settings or without"),
    ] = None,
    data: Annotated[str, typer.Option(help="the task's data set, for the bytes")] = "mnist",
    model: Annotated[str | None, typer.Option(help="the learners' model, for the bytes")] = None,
    json_: Json = False,
) -> None:
    """List the methods: what each does, what leaves the learner, and bytes per round for a task."""
    from consilience.cli.terminal import Screen
    from consilience.presentation.method_table import catalog, catalog_table

    rows = catalog(data, model, names or ())
    if json_:
        for row in rows:
            print(json.dumps(row))
    else:
        Screen(False).print(catalog_table(rows))
