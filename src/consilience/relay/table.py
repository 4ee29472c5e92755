"""What all tables of a relay's store have in common.

The last column of each is a checksum of the others: a record that does not match it is never returned, but raises
`DamagedRecord`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from consilience.relay.checksums import DamagedRecord, checksum

CREATE_TABLES = """
CREATE TABLE epochs(
    id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, reason TEXT NOT NULL, time TEXT NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE federations(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, charter TEXT NOT NULL, revision INTEGER NOT NULL,
    round INTEGER NOT NULL, advanced_by INTEGER NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE members(
    id INTEGER PRIMARY KEY, federation INTEGER NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL,
    token_hash BLOB NOT NULL, revoked INTEGER NOT NULL, away INTEGER NOT NULL,
    round INTEGER NOT NULL, uploads INTEGER NOT NULL, bytes INTEGER NOT NULL, expires INTEGER NOT NULL,
    seen INTEGER NOT NULL, misses INTEGER NOT NULL, old_token_hash BLOB NOT NULL, old_expires INTEGER NOT NULL,
    checksum BLOB NOT NULL,
    UNIQUE(federation, number), UNIQUE(federation, name));
CREATE TABLE operators(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token_hash BLOB NOT NULL, expires INTEGER NOT NULL,
    checksum BLOB NOT NULL);
CREATE TABLE keys(
    id INTEGER PRIMARY KEY, purpose TEXT NOT NULL UNIQUE, secret BLOB NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE leases(
    id INTEGER PRIMARY KEY, holder TEXT NOT NULL, time TEXT NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE audit(
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, event TEXT NOT NULL, federation INTEGER NOT NULL,
    member INTEGER NOT NULL, detail TEXT NOT NULL, chain BLOB NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE receipts(
    member INTEGER NOT NULL, round INTEGER NOT NULL, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL,
    receipt TEXT NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY(member, round)) WITHOUT ROWID;
CREATE TABLE uploads(
    id INTEGER PRIMARY KEY, member INTEGER NOT NULL, header TEXT NOT NULL, body BLOB NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE contributions(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, number INTEGER NOT NULL, upload INTEGER NOT NULL,
    version INTEGER NOT NULL, entries INTEGER NOT NULL, weight REAL NOT NULL, round INTEGER NOT NULL,
    checksum BLOB NOT NULL, PRIMARY KEY(federation, channel, number)) WITHOUT ROWID;
CREATE INDEX contributions_of_upload ON contributions(upload);
CREATE TABLE channel_states(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL,
    checksum BLOB NOT NULL, PRIMARY KEY(federation, channel, version));
CREATE TABLE replies(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    checksum BLOB NOT NULL, PRIMARY KEY(federation, channel, version));
CREATE TABLE public_sets(
    federation INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, body BLOB NOT NULL, checksum BLOB NOT NULL);
"""
Row = tuple[Any, ...]


def statements() -> list[str]:
    """The statements that create the tables."""
    return [statement.strip() for statement in CREATE_TABLES.split(";\n") if statement.strip()]


class Table:
    """One table: its records are written with a checksum, and checked when they are read."""

    name: ClassVar[str]
    key: ClassVar[tuple[str, ...]] = ("id",)
    """The columns that identify a record; they come first."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql
        self._by_key = " AND ".join(f"{column} = ?" for column in self.key)

    def select(self, where: str = "", given: Sequence[Any] = (), order: str = "") -> Iterator[Row]:
        """The records that match, without their checksums; a damaged one raises `DamagedRecord`."""
        for row in self.select_raw(where, given, order):
            yield self.checked(row)

    def select_raw(self, where: str = "", given: Sequence[Any] = (), order: str = "") -> Iterator[Row]:
        """The records as they are, with their checksums."""
        conditions = f" WHERE {where}" if where else ""
        ordered = f" ORDER BY {order}" if order else ""
        yield from self.sql.execute(f"SELECT * FROM {self.name}{conditions}{ordered}", given)

    def find(self, *key: Any) -> Row | None:
        """The record with this key."""
        row = self.sql.execute(f"SELECT * FROM {self.name} WHERE {self._by_key}", key).fetchone()
        return None if row is None else self.checked(row)

    def checked(self, row: Row) -> Row:
        """The record without its checksum, if it matches."""
        if not self.is_sound(row):
            raise DamagedRecord(self.name, self.describe(row))
        return row[:-1]

    def is_sound(self, row: Row) -> bool:
        """Whether a record matches its checksum."""
        return bool(row[-1] == self.checksum(row[:-1]))

    def checksum(self, row: Row) -> bytes:
        """The checksum of a record that is given without one."""
        return checksum(self.name, row)

    def describe(self, row: Row) -> str:
        """A record's key, for messages."""
        return ", ".join(f"{column} {value!r:.80}" for column, value in zip(self.key, row, strict=False))

    def write(self, row: Row, *, new: bool = False) -> None:
        """Write a record, in place of the one with the same key; if it must be new, there may be no such one."""
        how, marks = "INSERT" if new else "INSERT OR REPLACE", ", ".join("?" * (len(row) + 1))
        self.sql.execute(f"{how} INTO {self.name} VALUES ({marks})", (*row, self.checksum(row)))

    def update_row(self, old: Any, new: Any) -> None:
        """Change a record, given as named tuples; only columns that differ are written, and their indexes."""
        columns, values = changed_columns(old, new)
        self.sql.execute(f"UPDATE {self.name} SET {columns} WHERE id = ?", (*values, self.checksum(new), new.id))

    def write_many(self, rows: Iterable[Row]) -> None:
        """Write new records."""
        marks = ", ".join("?" * len(self.sql.execute(f"SELECT * FROM {self.name} LIMIT 0").description))
        given = ((*row, self.checksum(row)) for row in rows)
        self.sql.executemany(f"INSERT INTO {self.name} VALUES ({marks})", given)

    def delete_row(self, row: Row) -> bool:
        """Delete a record by its key; False if it is not found by it."""
        try:
            return self.sql.execute(f"DELETE FROM {self.name} WHERE {self._by_key}", row[: len(self.key)]).rowcount > 0
        except UnicodeEncodeError:  # a key that is not UTF-8
            return False

    def write_all_again(self, rows: Iterable[Row]) -> None:
        """Replace all records by these: those of a damaged table may not be found by their keys."""
        kept = list(rows)
        self.sql.execute(f"DELETE FROM {self.name}")
        self.write_many(kept)

    def _next_id(self) -> int:
        (number,) = self.sql.execute(f"SELECT coalesce(max(id) + 1, 1) FROM {self.name}").fetchone()
        return int(number)


def changed_columns(old: Any, new: Any) -> tuple[str, list[Any]]:
    """What follows SET in the statement that changes one named tuple into another, and the values but the checksum."""
    changed = [(column, now) for column, was, now in zip(new._fields, old, new, strict=True) if was != now]
    return "".join([f"{column} = ?, " for column, _ in changed]) + "checksum = ?", [now for _, now in changed]
