"""The command `consilience`: its commands, and how its errors are shown.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import consilience
from consilience.cli.data import data
from consilience.cli.init import init
from consilience.cli.join import federation, join
from consilience.cli.leakage import leakage
from consilience.cli.methods import methods
from consilience.cli.relay import app as relay
from consilience.cli.reproduce import reproduce
from consilience.cli.run import compare, run, sweep
from consilience.cli.show import report, show
from consilience.errors import ConfigurationError, ConsilienceError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn together without sharing data or models.",
)
for command in (init, data, run, compare, sweep, reproduce, federation, join, methods, show, report, leakage):
    app.command()(command)
app.add_typer(relay, name="relay")

_EXTRAS = {"learn": {"torch", "sklearn", "pooch", "PIL", "httpx"}, "relay": {"starlette", "uvicorn", "httptools"}}
"""The packages of each extra: a relay needs no torch, and a learner no server."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"consilience {consilience.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Learn together without sharing data or models."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors become one line on standard error, and an exit code."""
    try:
        app(args=list(arguments) if arguments is not None else None)
    except ConsilienceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
    except ModuleNotFoundError as error:
        extra = next((extra for extra, needed in _EXTRAS.items() if (error.name or "").split(".")[0] in needed), None)
        if extra is None:
            raise
        print(
            f"error: {error.name} is not installed, and this needs it: pip install 'consilience[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
