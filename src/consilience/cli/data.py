"""`consilience data`: show a data set, and its split between learners."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.options import DATA_KEYS, Json, with_settings

_SPLIT_KEYS = {"learners", "partition", "shift", "seed"}


@partial(with_settings, only=DATA_KEYS | _SPLIT_KEYS)
def data(
    name: Annotated[str, typer.Argument(help="a data set by name, a table, an .npz file, or a folder")] = "digits",
    out: Annotated[Path | None, typer.Option(help="write the pictures to this file, such as grid.png")] = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Show a data set: samples, classes, pictures; with --learners, --partition or --shift its split."""
    from consilience.cli.terminal import Screen
    from consilience.config.config import make_config
    from consilience.simulation.setup.inputs import with_absolute_paths

    given = settings or {}
    config = with_absolute_paths(make_config({**given, "data": name}))
    Screen(json_).data(config, split=bool(_SPLIT_KEYS & set(given)), out=out)
