"""What the operator of a relay does with its store: create federations, invite and revoke members, show the status."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from consilience.channels import MovingMean
from consilience.errors import ConfigurationError, StorageError, UnknownName
from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord
from consilience.wire import schema, tokens
from consilience.wire.charter import NAME, Charter, decode_start_values, read_charter, start_values_file

_LONGEST = 200  # characters of a refused name that a message shows


@contextlib.contextmanager
def open_store(path: Path, *, create: bool = False) -> Iterator[Store]:
    """The store, closed at the end; errors of the disk become a `StorageError`."""
    store = Store(path, create=create)
    try:
        yield store
    except sqlite3.Error as error:
        raise StorageError(f"{path}: {error}") from error
    finally:
        store.close()


def create(path: Path, file: Path) -> Charter:
    """Create a federation from the file of its charter, and from the start values beside it if it has any."""
    try:
        charter = read_charter(file.read_text(encoding="utf-8"), str(file))
        values_file = start_values_file(file)
        body = values_file.read_bytes() if charter.start_values_message() else b""
        starts = decode_start_values(charter, body, str(values_file))
    except (OSError, UnicodeDecodeError) as error:
        place, why = getattr(error, "filename", None) or file, getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{place}: cannot be read: {why}") from error
    with open_store(path, create=True) as store, store.writing():
        if any(record.name == charter.name for record in store.federations.all()):
            raise ConfigurationError(f"{path} already has a federation {charter.name!r}; give this one another name")
        federation = store.federations.add(charter.name, charter.to_toml())
        for name, values in starts.items():
            channel = charter.channels[name]
            assert isinstance(channel, schema.Mean)
            store.channel_states.save(federation, name, MovingMean(channel, 1, values).state())
    return charter


def invite(path: Path, member: str, federation: str | None = None) -> tokens.Token:
    """Add a member; returns its token, which cannot be shown again."""
    if not NAME.fullmatch(member):
        raise ConfigurationError(
            f"member {member[:_LONGEST]!r}: a name has lower-case letters, digits and dashes, at most 64, and starts "
            f"with a letter or digit"
        )
    with open_store(path) as store, store.writing():
        federation_id = _federation_id(store, federation)
        if any(known.name == member for known in store.members.of(federation_id)):
            raise ConfigurationError(
                f"member {member!r} was invited before, and a token is shown only once; if it is lost, revoke the "
                f"member and invite it under another name"
            )
        token = tokens.new_token(store.members.add(federation_id, member))
        store.members.set_token(token.member, token.hashed)
    return token


def revoke(path: Path, member: str, federation: str | None = None) -> None:
    """Revoke a member's token; the relay then refuses it and removes the member's contributions."""
    with open_store(path) as store, store.writing():
        known = {each.name: each for each in store.members.of(_federation_id(store, federation))}
        if member not in known:
            raise UnknownName("member", member, known)
        store.members.revoke(known[member].id)


def status(path: Path) -> list[dict[str, Any]]:
    """Every federation with its totals, versions and members."""
    with open_store(path) as store, store.reading():
        return [
            {
                "federation": record.name,
                "method": read_charter(record.charter).method["name"],
                **store.members.totals(record.id),
                "versions": _versions(store, record.id, read_charter(record.charter)),
                "members": [_describe_member(each) for each in store.members.of(record.id)],
            }
            for record in store.federations.all()
        ]


def _describe_member(member: MemberRecord) -> dict[str, Any]:
    state = "revoked" if member.revoked else "away" if member.away else "invited" if member.round < 0 else "active"
    return {"number": member.number, "name": member.name, "state": state, "round": max(member.round, 0)}


def _versions(store: Store, federation: int, charter: Charter) -> dict[str, int]:
    moving = [name for name, settings in charter.channel_settings.items() if settings.kind == "moving"]
    states = {name: store.channel_states.get(federation, name) for name in moving}
    return {name: int(state["version"][0]) for name, state in states.items() if state is not None}


def _federation_id(store: Store, name: str | None) -> int:
    known = {record.name: record.id for record in store.federations.all()}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name is None:
        raise ConfigurationError(
            f"{store.path} has {len(known)} federations; choose one with --federation: "
            f"{', '.join(sorted(known)) or 'there is none yet'}"
        )
    if name not in known:
        raise UnknownName("federation", name, known)
    return known[name]
