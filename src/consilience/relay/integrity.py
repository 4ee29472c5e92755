"""Walk a store and find what is damaged: pages of the file, records, and records that others need and that are gone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from consilience.errors import StorageError
from consilience.relay.keys import SIGN
from consilience.relay.store import Store
from consilience.relay.table import Table
from consilience.wire.charter import read_charter


class TableCheck(NamedTuple):
    """How many records a table has, and the keys of those that are damaged."""

    table: str
    records: int
    damaged: list[str]


class StoreCheck(NamedTuple):
    """What a walk through a store has found."""

    tables: list[TableCheck]
    others: list[str]
    """Indexes that do not fit their tables, and records that need one that is gone."""
    chain: list[str]
    """Where the chain of what happened is broken. It cannot be repaired, and does not keep a store from being used."""

    @property
    def damage(self) -> list[str]:
        """Everything that is not sound, one line each."""
        return [f"{found.table}, {key}: damaged" for found in self.tables for key in found.damaged] + self.others


def check_pages(store: Store) -> None:
    """Refuse a file whose pages do not fit together."""
    found = _run_check(store, "quick_check(3)")
    if found != ["ok"]:
        raise damaged_file(store, "; ".join(found))


def damaged_file(store: Store, why: object) -> StorageError:
    """The error for a file that SQLite cannot read as a whole."""
    return StorageError(
        f"{store.path} is damaged, and nothing of it is served: {why}. Restore a backup, or copy what can be read into "
        f"a new file: sqlite3 {store.path.name} .recover"
    )


def check_indexes(store: Store) -> list[str]:
    """What does not fit between tables and their indexes; uploads, receipts and the audit trail have none."""
    without = (store.uploads, store.receipts, store.audit)
    tables = [table.name for table in store.tables if table not in without]
    return [line for name in tables for line in _run_check(store, f"integrity_check({name})") if line != "ok"]


def _run_check(store: Store, pragma: str) -> list[str]:
    try:
        return [text for (text,) in store.sql.execute(f"PRAGMA {pragma}")]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return [str(error)]


def check_store(store: Store) -> StoreCheck:
    """Check every page and every record of a store; nothing is changed."""
    check_pages(store)
    try:
        with store.reading():
            indexes = [f"indexes: {line}" for line in check_indexes(store)]
            tables = [_check_table(table) for table in store.tables]
            return StoreCheck(tables, indexes + list(_missing(store)), list(store.audit.breaks()))
    except sqlite3.DatabaseError as error:
        raise damaged_file(store, error) from error


def _check_table(table: Table) -> TableCheck:
    records, damaged = 0, []
    for row in table.select_raw():
        records += 1
        if not table.is_sound(row):
            damaged.append(table.describe(row))
    return TableCheck(table.name, records, damaged)


def _missing(store: Store) -> Iterator[str]:
    """Contributions without their upload, moving means without common values, and records of no federation."""
    rows = store.sql.execute(
        "SELECT federation, channel, number FROM contributions c "
        "WHERE NOT EXISTS (SELECT 1 FROM uploads u WHERE u.id = c.upload)"
    )
    for federation, channel, number in rows:
        yield f"contributions, federation {federation}, channel {channel!r}, number {number}: its upload is gone"
    for record in store.federations.sound():
        stored = {row[1] for row in store.channel_states.select_raw("federation = ?", (record.id,))}
        for name, channel in read_charter(record.charter).channels.items():
            if channel.moves and name not in stored:
                yield f"channel_states, federation {record.id}, channel {name!r}: its common values are gone"
    if not any(store.keys.select_raw("purpose = ?", (SIGN,))):
        yield "keys: the key that signs receipts and answers is gone"
    for table in ("members", "contributions", "channel_states", "replies", "public_sets"):
        query = f"SELECT count(*) FROM {table} WHERE federation NOT IN (SELECT id FROM federations)"
        (count,) = store.sql.execute(query).fetchone()
        if count:
            yield f"{table}: {count} records of a federation that is gone"
