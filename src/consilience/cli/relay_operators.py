"""`consilience relay operator add | remove | list`: who may see the state of a relay."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="People who may see the state of the relay: its page and its metrics.")

Name = Annotated[str, typer.Argument(help="a name for the operator, such as anna")]
Place = Annotated[Path, typer.Option("--store", help="the database file of the relay")]
_STORE = Path("relay.db")


@app.command()
def add(
    name: Name,
    days: Annotated[
        float | None, typer.Option(help="for how many days the token is valid; by default for ever")
    ] = None,
    store: Place = _STORE,
) -> None:
    """Make a token for an operator; one that it had before is refused from now on. It is shown only once."""
    from consilience.relay.operators import add_operator

    token = add_operator(store, name, days)
    print(f"{name}'s operator token, shown only once:", file=sys.stderr)
    print(token)


@app.command()
def remove(name: Name, store: Place = _STORE) -> None:
    """Remove an operator; its token is refused at once."""
    from consilience.relay.operators import remove_operator

    remove_operator(store, name)
    print(f"{name}'s operator token has been revoked", file=sys.stderr)


@app.command("list")
def list_(store: Place = _STORE) -> None:
    """List operators and when their tokens expire."""
    from consilience.relay.expiry import format_time
    from consilience.relay.operators import list_operators

    for each in list_operators(store):
        print(f"{each.name:<24} expires {format_time(each.expires) or 'never'}")
