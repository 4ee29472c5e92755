"""Stores of an older layout, migrated to today's; a copy of the file as it was is kept beside it.

Layout 2 had no checksums, layout 3 no public sets.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from safetensors.numpy import load

from consilience.errors import StorageError
from consilience.relay.audit import AuditTable
from consilience.relay.checksums import checksum
from consilience.relay.copy_store import copy_store
from consilience.relay.new_key import use_key
from consilience.relay.table import Row, statements
from consilience.relay.tables import EpochTable, MemberRecord, UploadTable

OLDEST = 2
"""The oldest layout that can be migrated."""
_LAYOUT_2 = {
    "federations": ("id", "name", "charter", "revision", "round", "advanced_by"),
    "members": (*("id", "federation", "number", "name", "token_hash", "revoked", "away", "round", "uploads", "bytes"),),
    "receipts": ("member", "round", "sha256", "bytes", "receipt"),
    "uploads": ("id", "member", "header", "body"),
    "contributions": ("federation", "channel", "number", "upload", "version", "entries", "weight", "round"),
    "channel_states": ("federation", "channel", "state"),
    "replies": ("federation", "channel", "version", "body"),
}
"""The tables of layout 2 and their columns; none had a checksum, states had no version and tokens never expired."""
_NEW_TABLE = next(statement for statement in statements() if statement.startswith("CREATE TABLE public_sets"))
"""What layout 4 has and layout 3 does not."""
log = logging.getLogger("consilience.relay")


def migrate(sql: sqlite3.Connection, path: Path, layout: int, to: int) -> None:
    """Give every record of layout 2 a checksum, and layout 3 its new table. Either all of it is done, or nothing."""
    _check_columns(sql, path, layout)
    kept = copy_store(sql, path.with_name(f"{path.name}.layout-{layout}"))
    sql.execute("BEGIN IMMEDIATE")
    try:
        if sql.execute("PRAGMA user_version").fetchone() == (layout,):  # no other process was faster
            if layout == OLDEST:
                _write_tables(sql)
                EpochTable(sql).begin(f"migrated from layout {layout}")
                use_key(sql)
            else:
                sql.execute(_NEW_TABLE)
            AuditTable(sql).append("migrated", layout=layout)
            sql.execute(f"PRAGMA user_version = {to}")
        sql.execute("COMMIT")
    except BaseException:
        if sql.in_transaction:
            sql.execute("ROLLBACK")
        raise
    log.warning("%s was migrated from layout %d to %d; %s is the store as it was", path, layout, to, kept)


def _check_columns(sql: sqlite3.Connection, path: Path, layout: int) -> None:
    if layout > OLDEST:
        declared = {text for (text,) in sql.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if not {*statements()} - {_NEW_TABLE} <= declared:
            raise StorageError(
                f"{path} says that it is a store of layout {layout}, and its tables are not; restore a backup"
            )
        return
    for table, columns in _LAYOUT_2.items():
        found = tuple(row[1] for row in sql.execute(f"PRAGMA table_info({table})"))
        if found != columns:
            raise StorageError(
                f"{path} says that it is a store of layout {layout}, and its table {table} is not; restore a backup"
            )


def _write_tables(sql: sqlite3.Connection) -> None:
    sql.execute("DROP INDEX contributions_of_upload")
    for table in _LAYOUT_2:
        sql.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in statements():
        sql.execute(statement)
    for table in _LAYOUT_2:
        convert = _CONVERSIONS.get(table, tuple)
        marks = ", ".join("?" * len(sql.execute(f"SELECT * FROM {table} LIMIT 0").description))
        rows = (convert(row) for row in sql.execute(f"SELECT * FROM old_{table}"))
        compute = UploadTable(sql).checksum if table == "uploads" else partial(checksum, table)
        sql.executemany(f"INSERT INTO {table} VALUES ({marks})", ((*row, compute(row)) for row in rows))
        sql.execute(f"DROP TABLE old_{table}")


def _with_version(row: Row) -> Row:
    federation, channel, state = row
    arrays = load(state)
    return federation, channel, int(arrays["version"][0]) if "version" in arrays else 0, state


def _never_expires(row: Row) -> Row:
    return MemberRecord(*row)


_CONVERSIONS: dict[str, Callable[[Row], Row]] = {"members": _never_expires, "channel_states": _with_version}
"""Records that have more columns than in layout 2."""
