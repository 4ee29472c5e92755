"""What the operator of a relay does with its store: create federations, invite and revoke members, show the status."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from consilience.channels import MovingMean
from consilience.errors import ConfigurationError, StorageError, UnknownName
from consilience.relay.expiry import expiry, format_time
from consilience.relay.integrity import check_store
from consilience.relay.store import Store
from consilience.relay.store_errors import explain
from consilience.relay.tables import MemberRecord
from consilience.wire import schema, tokens
from consilience.wire.charter import NAME, Charter, decode_start_values, read_charter, start_values_file
from consilience.wire.signatures import public_key

_LONGEST = 200  # characters of a refused name that a message shows


@contextlib.contextmanager
def open_store(path: Path, *, create: bool = False) -> Iterator[Store]:
    """The store, closed at the end; errors of the disk become a `StorageError`."""
    store = Store(path, create=create)
    try:
        yield store
    except sqlite3.Error as error:
        raise explain(path, error) or StorageError(f"{path}: {error}") from error
    finally:
        store.close()


def create(path: Path, file: Path) -> Charter:
    """Create a federation from the file of its charter, and from the start values beside it if it has any."""
    try:
        charter = read_charter(file.read_text(encoding="utf-8"), str(file))
        values_file = start_values_file(file)
        body = values_file.read_bytes() if charter.start_values_message() else b""
        starts = decode_start_values(charter, body, str(values_file))
        if charter.members:
            raise ConfigurationError(
                f"{file} lists the members' keys: it is for a federation without a relay, which they join with "
                f"`consilience join --charter {file} --key FILE --peers ADDRESS`"
            )
    except (OSError, UnicodeDecodeError) as error:
        place, why = getattr(error, "filename", None) or file, getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{place}: cannot be read: {why}") from error
    with open_store(path, create=True) as store, store.writing():
        charter = _with_key(charter, public_key(store.keys.get()), file)
        if any(record.name == charter.name for record in store.federations.sound()):
            raise ConfigurationError(f"{path} already has a federation {charter.name!r}; give this one another name")
        federation = store.federations.add(charter.name, charter.to_toml())
        for name, values in starts.items():
            channel = charter.channels[name]
            assert isinstance(channel, schema.Mean)
            store.channel_states.save(federation, name, MovingMean(channel, 1, values).state())
        store.audit.append("created", federation, name=charter.name)
    return charter


def _with_key(charter: Charter, key: str, file: Path) -> Charter:
    if charter.relay_key not in ("", key):
        raise ConfigurationError(
            f"{file} has the relay_key of another relay, {charter.relay_key}, and this one's is {key}; remove that line"
        )
    return charter.with_relay_key(key)


def key(path: Path) -> str:
    """The public key of a relay, by which members recognize it."""
    with open_store(path) as store:
        return public_key(store.keys.get())


def check_name(what: str, name: str) -> None:
    """Refuse a name that tables and commands could not show or take as it is."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name[:_LONGEST]!r}: a name has lower-case letters, digits and dashes, at most 64, and starts "
            f"with a letter or digit"
        )


def invite(path: Path, member: str, federation: str | None = None, days: float | None = None) -> tokens.Token:
    """Add a member, or accept a revoked one again under its number; returns its token, which cannot be shown again.

    days: for how long the token is valid; without, it never expires.
    """
    check_name("member", member)
    expires = expiry(days)
    with open_store(path) as store, store.writing():
        number = federation_id(store, federation)
        known = {each.name: each for each in store.members.of(number)}.get(member)
        if known is not None and known.revoked != 1:
            raise ConfigurationError(
                f"member {member!r} was invited before, and a token is shown only once; if it is lost or has expired, "
                f"make a new one: consilience relay rotate {member}"
            )
        token = tokens.Token.new(store.members.add(number, member) if known is None else known.id)
        if known is not None:
            store.members.reinvite(known.id)
        store.members.set_token(token.id, token.hashed, expires)
        store.audit.append("invited" if known is None else "invited-again", number, token.id, name=member)
    return token


def revoke(path: Path, member: str, federation: str | None = None) -> None:
    """Revoke a member's token; the relay then refuses it and removes the member's contributions."""
    with open_store(path) as store, store.writing():
        found = find_member(store, member, federation)
        store.members.revoke(found.id)
        store.audit.append("revoked", found.federation, found.id, name=member)


def find_member(store: Store, member: str, federation: str | None) -> MemberRecord:
    """A member by its name."""
    known = {each.name: each for each in store.members.of(federation_id(store, federation))}
    if member not in known:
        raise UnknownName("member", member, known)
    return known[member]


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
            for record in store.federations.sound()
        ]


def verify(path: Path) -> dict[str, Any]:
    """How many records each table of a store has, and what of it is damaged."""
    with open_store(path) as store:
        found = check_store(store)
    return {"records": {table.table: table.records for table in found.tables}, "damage": found.damage + found.chain}


def _describe_member(member: MemberRecord) -> dict[str, Any]:
    return {
        "number": member.number,
        "name": member.name,
        "state": member.state(time.time()),
        "round": max(member.round, 0),
        "seen": format_time(member.seen),
        "expires": format_time(member.expires),
    }


def _versions(store: Store, federation: int, charter: Charter) -> dict[str, int]:
    moving = [name for name, settings in charter.channel_settings.items() if settings.kind == "moving"]
    states = {name: store.channel_states.get(federation, name) for name in moving}
    return {name: int(state["version"][0]) for name, state in states.items() if state is not None}


def federation_id(store: Store, name: str | None) -> int:
    """The id of a federation; it need not be named if there is one."""
    known = {record.name: record.id for record in store.federations.sound()}
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
