"""The audit trail as an operator reads it: entries with names, and where their chain is broken."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from consilience.errors import ConfigurationError, UnknownName
from consilience.relay.admin import open_store
from consilience.relay.audit import AuditRecord, hashed_text
from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord


@dataclass(frozen=True)
class TrailEntry:
    """One entry; federation and member are names, empty where it concerns none."""

    number: int
    time: str
    event: str
    federation: str
    member: str
    detail: dict[str, Any]
    chain: str
    hashed: str

    @property
    def described(self) -> str:
        """Whom it concerns, and the details."""
        details = {key: value for key, value in self.detail.items() if value != self.member}
        named = [f"{key} {value}" for key, value in details.items() if value != self.federation]
        return " ".join(text for text in (self.federation, self.member, *named) if text)

    def as_json(self) -> dict[str, Any]:
        """All of it; `hashed` is the text after the chain value before, in UTF-8, of which `chain` is the SHA-256."""
        return asdict(self)


@dataclass(frozen=True)
class Trail:
    """The entries that were asked for, the number of all entries, and where the chain of all is broken."""

    entries: list[TrailEntry]
    total: int
    broken: list[str]


def read_trail(path: Path, federation: str | None, member: str | None, last: int | None) -> Trail:
    """Read the entries that concern a federation or a member, and check all of them."""
    with open_store(path) as store, store.reading():
        federations = {record.id: record.name for record in store.federations.sound()}
        members = {row[0]: MemberRecord(*row[:-1]) for row in store.members.select_raw() if store.members.is_sound(row)}
        chosen, number = _federation(federations, federation), None
        if member is not None:
            number = _member(members, federations, member, chosen)
        entries = store.audit.entries(chosen, number, last)
        names = {record.id: record.name for record in members.values()}
        return Trail([_entry(each, federations, names) for each in entries], *_checked(store))


def _checked(store: Store) -> tuple[int, list[str]]:
    (total,) = store.sql.execute("SELECT count(*) FROM audit").fetchone()
    return int(total), list(store.audit.breaks())


def _entry(record: AuditRecord, federations: dict[int, str], members: dict[int, str]) -> TrailEntry:
    try:
        detail = json.loads(record.detail)
    except (ValueError, TypeError):  # damaged
        detail = None
    chain = record.chain.hex() if isinstance(record.chain, bytes) else repr(record.chain)
    return TrailEntry(
        record.id,
        str(record.time),
        str(record.event),
        federations.get(record.federation, ""),
        members.get(record.member, ""),
        detail if isinstance(detail, dict) else {"unreadable": repr(record.detail)},
        chain,
        hashed_text(record),
    )


def _federation(known: dict[int, str], name: str | None) -> int | None:
    if name is None:
        return None
    if name not in known.values():
        raise UnknownName("federation", name, known.values())
    return next(number for number, each in known.items() if each == name)


def _member(members: dict[int, MemberRecord], federations: dict[int, str], name: str, chosen: int | None) -> int:
    found = [m for m in members.values() if m.name == name and chosen in (None, m.federation)]
    if not found:
        raise UnknownName("member", name, {m.name for m in members.values() if chosen in (None, m.federation)})
    if len(found) > 1:
        where = ", ".join(federations.get(m.federation, "?") for m in found)
        raise ConfigurationError(f"{len(found)} federations have a member {name!r}: {where}; choose with --federation")
    return found[0].id
