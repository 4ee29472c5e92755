"""The command `consilience`: its commands, and how its errors are shown.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

import consilience
from consilience.cli.advise import advise
from consilience.cli.audit import audit
from consilience.cli.data import data
from consilience.cli.export import export, predict
from consilience.cli.init import init
from consilience.cli.join import federation, join, key
from consilience.cli.leakage import leakage
from consilience.cli.methods import methods
from consilience.cli.relay import app as relay
from consilience.cli.reproduce import reproduce
from consilience.cli.run import compare, run, sweep
from consilience.cli.show import report, show
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.extras import install_command

_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "To begin": (run, compare, report, init, methods),
    "More with runs": (advise, sweep, show, export, predict, data, leakage, audit, reproduce),
    "Over a network": (join, federation, key),
}
"""The commands under their headings in the help; those to begin with are also shown where none is given."""

app = typer.Typer(pretty_exceptions_enable=False, help="Learn together without sharing data or models.")
for _heading, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(rich_help_panel=_heading)(_command)
app.add_typer(relay, name="relay", rich_help_panel="Over a network")

_EXTRAS = {
    "learn": {"torch", "sklearn", "scipy", "networkx", "pooch", "PIL"},
    "relay": {"starlette", "uvicorn", "httptools", "cryptography", "prometheus_client"},
}
"""The packages of each extra: a relay needs no torch, and a learner no server."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"consilience {consilience.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Learn together without sharing data or models."""
    if context.invoked_subcommand is None:
        print(_first_screen())


def _first_screen() -> str:
    """The commands to begin with, one per line."""
    first = {command.__name__: (command.__doc__ or "").splitlines()[0] for command in _COMMANDS["To begin"]}
    lines = [f"  consilience {name:<10}{about}" for name, about in first.items()]
    return "\n".join(
        [
            "Learn together without sharing data or models. To begin:",
            "",
            *lines,
            "",
            "Each explains its options with --help; all commands: consilience --help",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors become one line on standard error, and an exit code."""
    try:
        app(args=list(arguments) if arguments is not None else None)
    except ConsilienceError as error:
        where = [f" ({note})" for note in getattr(error, "__notes__", ()) if "\n" not in note]  # without tracebacks
        print(f"error: {error}{''.join(where)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
    except ModuleNotFoundError as error:
        extra = next((extra for extra, needed in _EXTRAS.items() if (error.name or "").split(".")[0] in needed), None)
        if extra is None:
            raise
        print(f"error: {error.name} is not installed, and this needs it: {install_command(extra)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
