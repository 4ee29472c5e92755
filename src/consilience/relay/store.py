"""The relay's store: one SQLite file with everything the relay has acknowledged.

It uses a write-ahead log that is synced at every commit; one connection writes, others read beside it. `tables` has
what is stored and the SQL; this module opens the file, checks its layout and runs transactions.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from consilience.errors import ConfigurationError, StorageError
from consilience.files import lock_file
from consilience.relay.tables import (
    CREATE_TABLES,
    ChannelStateTable,
    ContributionTable,
    FederationTable,
    MemberTable,
    ReceiptTable,
)

LAYOUT = 2
"""The layout of the tables. A store of another layout is refused."""


class Store:
    """One connection to the file, with a table for each thing that is stored."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if not create and not path.is_file():
            raise ConfigurationError(f"{path}: no such store; `consilience relay create FILE --store {path}` makes one")
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)  # it holds all contributions: only the relay's user may read it
            self.sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
            self._configure()
            self._check_layout(create)
            self.sql.execute("PRAGMA journal_mode = WAL")
        except (sqlite3.DatabaseError, OSError) as error:
            raise StorageError(f"{path} cannot be opened as a relay's store: {error}") from error
        self.federations = FederationTable(self.sql)
        self.members = MemberTable(self.sql)
        self.receipts = ReceiptTable(self.sql)
        self.contributions = ContributionTable(self.sql)
        self.channel_states = ChannelStateTable(self.sql)

    def _configure(self) -> None:
        self.sql.execute("PRAGMA busy_timeout = 10000")
        self.sql.execute("PRAGMA synchronous = FULL")  # fsync at every commit
        self.sql.execute("PRAGMA wal_autocheckpoint = 16000")  # in pages: uploads wait during a checkpoint
        self.sql.execute("PRAGMA cache_size = -16000")

    def _check_layout(self, create: bool) -> None:
        """Refuse a file of another layout; create the tables in a new one."""
        (layout,) = self.sql.execute("PRAGMA user_version").fetchone()
        if layout == LAYOUT:
            return
        if layout:
            age = "an older" if layout < LAYOUT else "a newer"
            raise ConfigurationError(
                f"{self.path} is a store of layout {layout}, which {age} version of consilience wrote; this version "
                f"reads layout {LAYOUT}. Serve it with the version that wrote it, or create the federation again in a "
                f"new file (--store)"
            )
        (tables,) = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables or not create:
            raise ConfigurationError(
                f"{self.path} is not a relay's store: it has no layout number; choose another file with --store"
            )
        with self.writing():
            if self.sql.execute("PRAGMA user_version").fetchone() == (0,):  # no other process was faster
                for statement in CREATE_TABLES.split(";\n"):
                    self.sql.execute(statement)
                self.sql.execute(f"PRAGMA user_version = {LAYOUT}")

    def close(self) -> None:
        """Close the file."""
        self.sql.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: everything written within is on disk afterwards, or nothing is."""
        self.sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.sql.execute("COMMIT")
        except BaseException:
            if self.sql.in_transaction:
                self.sql.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A part of a transaction: if it fails, only this part is undone."""
        self.sql.execute("SAVEPOINT step")
        try:
            yield
        except BaseException:
            if self.sql.in_transaction:  # a full disk may have ended the transaction
                self.sql.execute("ROLLBACK TO step")
            raise
        finally:
            if self.sql.in_transaction:
                self.sql.execute("RELEASE step")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Everything read within is from one moment."""
        self.sql.execute("BEGIN")
        try:
            yield
        finally:
            self.sql.execute("ROLLBACK")

    @property
    def data_version(self) -> int:
        """A number that changes whenever another connection has written."""
        (version,) = self.sql.execute("PRAGMA data_version").fetchone()
        return int(version)


def lock_store(path: Path) -> IO[bytes]:
    """The lock a relay holds while it serves a store: two relays would overwrite each other's sums."""
    return lock_file(path.with_name(f"{path.name}-lock"), f"{path} is served by another relay; stop that one first")


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk, or what SQLite may use of it, is full."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
