"""What whoever runs a relay does with its store: found federations, invite members, revoke them, look."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from consilience.channels import MovingMean
from consilience.errors import ConfigurationError, StorageError, UnknownName
from consilience.relay.store import Member, Store
from consilience.wire import schema, tokens
from consilience.wire.charter import NAME, Charter, decode_start_values, read_charter, start_values_file

_LONGEST = 200


@contextlib.contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[Store]:
    """The store, closed again; what goes wrong with the disk is told as that."""
    store = Store(path, create=create)
    try:
        yield store
    except sqlite3.Error as error:
        raise StorageError(f"{path}: {error}") from error
    finally:
        store.close()


def create(path: Path, file: Path) -> Charter:
    """Found a federation from its charter's file, and the common values beside it where it has any."""
    try:
        charter = read_charter(file.read_text(encoding="utf-8"), str(file))
        values = start_values_file(file)
        starts = decode_start_values(charter, values.read_bytes() if charter.starts() else b"", str(values))
    except (OSError, UnicodeDecodeError) as error:
        place, why = getattr(error, "filename", None) or file, getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{place}: cannot be read: {why}") from error
    with opened(path, create=True) as store, store.writing():
        if any(name == charter.name for _, name, *_ in store.federations()):
            raise ConfigurationError(f"{path} has a federation {charter.name!r} already; give this one another name")
        number = store.add_federation(charter.name, charter.to_toml())
        for name, values_of in starts.items():
            channel = charter.channels[name]
            assert isinstance(channel, schema.Mean)
            store.keep_state(number, name, MovingMean(channel, 1, values_of).state())
    return charter


def invite(path: Path, member: str, federation: str | None = None) -> tokens.Token:
    """A new member; its token is told this once."""
    if not NAME.fullmatch(member):
        raise ConfigurationError(
            f"member {member[:_LONGEST]!r}: a name has lower-case letters, digits and dashes, 64 at most, and begins "
            f"with a letter or digit"
        )
    with opened(path) as store, store.writing():
        number = _federation(store, federation)
        if any(known.name == member for known in store.members(number)):
            raise ConfigurationError(
                f"member {member!r} was invited before, and a token is shown only once; where it is lost, revoke it "
                f"and invite it under another name"
            )
        token = tokens.new(store.add_member(number, member))
        store.set_token(token.member, token.hashed)
    return token


def revoke(path: Path, member: str, federation: str | None = None) -> None:
    """From now on a member's token opens nothing, and what it had put counts no longer."""
    with opened(path) as store, store.writing():
        known = {each.name: each for each in store.members(_federation(store, federation))}
        if member not in known:
            raise UnknownName("member", member, known)
        store.revoke(known[member].id)


def status(path: Path) -> list[dict[str, Any]]:
    """How every federation stands."""
    with opened(path) as store, store.reading():
        return [
            {
                "federation": name,
                "method": read_charter(charter).method["name"],
                **store.totals(number),
                "versions": _versions(store, number, read_charter(charter)),
                "members": [_told(each) for each in store.members(number)],
            }
            for number, name, charter, _ in store.federations()
        ]


def _told(member: Member) -> dict[str, Any]:
    state = "revoked" if member.revoked else "away" if member.away else "invited" if member.round < 0 else "here"
    return {"number": member.number, "name": member.name, "state": state, "round": max(member.round, 0)}


def _versions(store: Store, federation: int, charter: Charter) -> dict[str, int]:
    moving = [name for name, terms in charter.terms.items() if terms.kind == "moving"]
    states = {name: store.state(federation, name) for name in moving}
    return {name: int(state["version"][0]) for name, state in states.items() if state is not None}


def _federation(store: Store, wanted: str | None) -> int:
    known = {name: number for number, name, *_ in store.federations()}
    if wanted is None and len(known) == 1:
        return next(iter(known.values()))
    if wanted is None:
        raise ConfigurationError(f"which federation? --federation is one of: {', '.join(sorted(known)) or 'none yet'}")
    if wanted not in known:
        raise UnknownName("federation", wanted, known)
    return known[wanted]
