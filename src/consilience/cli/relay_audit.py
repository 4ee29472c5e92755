"""`consilience relay audit | key`: what happened at a relay, and the key by which members recognize it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

_STORE = Path("relay.db")


def audit(
    store: Annotated[Path, typer.Option("--store", help="the database file of the relay")] = _STORE,
    federation: Annotated[str | None, typer.Option(help="only what concerns this federation")] = None,
    member: Annotated[str | None, typer.Option(help="only what concerns this member")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="only the last N entries")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show what happened, accepted uploads and acts of operators, and check that no entry was changed."""
    from consilience.relay.trail import read_trail

    trail = read_trail(store, federation, member, last)
    if json_:
        print(json.dumps({"entries": [entry.as_json() for entry in trail.entries], "broken": trail.broken}))
    else:
        for entry in trail.entries:
            print(f"{entry.number:>6}  {entry.time}  {entry.event:<16} {entry.described}  {entry.chain[:16]}")
        for line in trail.broken:
            print(f"  {line}")
        print(f"{store}: {trail.total} entries, " + (f"broken at {len(trail.broken)}" if trail.broken else "unbroken"))
    if trail.broken:
        raise typer.Exit(1)


def key(store: Annotated[Path, typer.Option("--store", help="the database file of the relay")] = _STORE) -> None:
    """Print the public key with which the relay signs receipts and answers."""
    from consilience.relay import admin

    print(admin.key(store))
