"""What happened at a relay, in a chain of hashes: accepted uploads, and what its operators did.

chain_i = SHA-256(chain_(i-1) + entry_i), where entry_i is the JSON array of its other columns and chain_0 is 32 zero
bytes. A receipt has the number and the chain value of its entry, so a member that keeps it can prove later that
the history up to there was not rewritten. Entries are never changed and never deleted.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from consilience.relay.table import Row, Table

# Made once: `json.dumps` with options makes an encoder at each call.
_encode_detail = json.JSONEncoder(sort_keys=True).encode
_encode_entry = json.JSONEncoder(separators=(",", ":"), default=repr).encode
START = bytes(32)
"""The chain value before the first entry."""
DAMAGED = "damaged"
"""The event of an entry that was damaged: what it said is lost, and a repair has put this in its place."""


class AuditRecord(NamedTuple):
    """Something that happened, and the hash that links it to everything before it.

    federation, member: ids; 0 if it concerns none. detail: JSON.
    """

    id: int
    time: str
    event: str
    federation: int
    member: int
    detail: str
    chain: bytes


class AuditTable(Table):
    """What happened, oldest first."""

    name = "audit"

    def __init__(self, sql: sqlite3.Connection) -> None:
        super().__init__(sql)
        self._last: tuple[int, bytes] | None = None  # number and chain value, while one transaction lasts

    def forget_last(self) -> None:
        """A transaction begins, or a part of one was undone: the last entry is read again."""
        self._last = None

    def append(self, event: str, federation: int = 0, member: int = 0, **detail: Any) -> AuditRecord:
        """Add an entry, within a transaction of the caller; it is never refused because of an older, damaged one."""
        last, before = self._last or self._read_last()
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = AuditRecord(last + 1, time, event, federation, member, _encode_detail(detail), b"")
        record = entry._replace(chain=next_chain(before, entry))
        self.write(record, new=True)
        self._last = record.id, record.chain
        return record

    def _read_last(self) -> tuple[int, bytes]:
        row = next(self.select_raw(order="id DESC LIMIT 1"), None)
        return (0, START) if row is None else (row[0], _as_bytes(row[6]))

    def entries(
        self, federation: int | None = None, member: int | None = None, last: int | None = None
    ) -> list[AuditRecord]:
        """Entries, oldest first: of a federation, of a member, only the last ones; damaged ones as they are."""
        where, given = ["1"], list[int]()
        for column, value in (("federation", federation), ("member", member)):
            if value is not None:
                where.append(f"{column} = ?")
                given.append(value)
        limit = "" if last is None else f" LIMIT {last}"
        rows = self.select_raw(" AND ".join(where), given, f"id DESC{limit}")
        return [AuditRecord(*row[:-1]) for row in rows][::-1]

    def breaks(self) -> Iterator[str]:
        """Where the chain is broken, one line for each entry."""
        yield from broken_links(self.select_raw(order="id"))

    def repair(self, on_damage: Callable[[Row, str], None]) -> None:
        """Put a sound entry in the place of each damaged one, which says that it was damaged."""
        self.forget_last()
        damaged = [row for row in self.select_raw() if not self.is_sound(row)]
        for row in damaged:
            on_damage(row, "what it said is lost, and the chain is broken there")
            chain = row[6] if isinstance(row[6], bytes) and len(row[6]) == len(START) else START
            time = str(row[1]).encode("ascii", "replace").decode()[:40]  # text that SQLite can store
            self.write(AuditRecord(row[0], time, DAMAGED, 0, 0, "{}", chain))


def next_chain(before: bytes, entry: AuditRecord) -> bytes:
    """The chain value of an entry after the one before."""
    return hashlib.sha256(before + hashed_text(entry).encode()).digest()


def hashed_text(entry: AuditRecord) -> str:
    """What the chain covers of an entry: a JSON array of all columns but the chain."""
    return _encode_entry(list(entry[:6]))


def broken_links(rows: Iterable[Row]) -> Iterator[str]:
    """Where entries do not follow from those before, given in order."""
    before, number, unknown = START, 1, False
    for row in rows:
        entry = AuditRecord(*row[:7])
        if entry.id > number:
            yield f"audit, entry {number}: it is gone" + (f", and all before {entry.id}" * (entry.id > number + 1))
        if entry.event == DAMAGED:
            yield f"audit, entry {entry.id}: it was damaged, and what it said is lost"
        elif entry.chain != next_chain(before, entry) and not unknown:
            yield f"audit, entry {entry.id}: it is not the entry that the chain was made of"
        before, number, unknown = _as_bytes(entry.chain), entry.id + 1, entry.event == DAMAGED


def _as_bytes(value: Any) -> bytes:
    """A stored chain value, whatever damage has made of it."""
    return value if isinstance(value, bytes) else repr(value).encode()
