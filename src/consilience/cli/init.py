"""`consilience init`: write a settings file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.options import MethodName, Set, gather_config, with_settings
from consilience.errors import ConfigurationError


@with_settings
def init(
    file: Annotated[Path, typer.Argument(help="the file to write")] = Path("experiment.toml"),
    method: MethodName = None,
    set_: Set = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite the file if it exists")] = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a settings file to start from, with every key explained."""
    from consilience.cli.config_template import starting_file
    from consilience.files import replace_file, report_write_errors

    wanted = gather_config(None, set_, settings or {}, method)
    if wanted.method.settings:  # their values are checked by the method itself, which imports torch
        from consilience.methods import build_method

        build_method(wanted.method.name, wanted.method.settings)
    if file.exists() and not force:
        raise ConfigurationError(f"{file} already exists; choose another name, or overwrite it with --force")
    with report_write_errors(file, "choose another place"):
        replace_file(file, starting_file(wanted).encode())
    print(f"{file} is written; run it with: consilience run {file}")
