"""The relay's store: one SQLite file with everything the relay has acknowledged.

It uses a write-ahead log that is synced at every commit; one connection writes, others read beside it. `tables` has
what is stored and the SQL; this module opens the file, checks its layout and runs transactions.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from consilience.errors import ConfigurationError, StorageError
from consilience.files import lock_file
from consilience.relay.audit import AuditTable
from consilience.relay.checksums import decode_text
from consilience.relay.keys import KeyTable
from consilience.relay.lease import LeaseTable
from consilience.relay.store_errors import explain
from consilience.relay.table import Table, statements
from consilience.relay.tables import (
    ChannelStateTable,
    ContributionTable,
    EpochTable,
    FederationTable,
    MemberTable,
    OperatorTable,
    PublicSetTable,
    ReceiptTable,
    ReplyTable,
    UploadTable,
)

LAYOUT = 5
"""Of the tables and the bodies in them. Another is refused: receipts sign bodies, so none can be written anew."""


class Store:
    """One connection to the file, with a table for each thing that is stored."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self.check_lease: Callable[[], None] = lambda: None
        """Called within each transaction that writes, before anything is written; the only writer sets it."""
        if not create and not path.is_file():
            raise ConfigurationError(f"{path}: no such store; `consilience relay create FILE --store {path}` makes one")
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)  # it holds all contributions: only the relay's user may read it
            self.sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
            self.epochs = EpochTable(self.sql)
            self.federations = FederationTable(self.sql)
            self.members = MemberTable(self.sql)
            self.receipts = ReceiptTable(self.sql)
            self.uploads = UploadTable(self.sql)
            self.contributions = ContributionTable(self.sql)
            self.channel_states = ChannelStateTable(self.sql)
            self.replies = ReplyTable(self.sql)
            self.operators = OperatorTable(self.sql)
            self.keys = KeyTable(self.sql)
            self.leases = LeaseTable(self.sql)
            self.audit = AuditTable(self.sql)
            with self.closed_on_error():
                self.sql.text_factory = decode_text
                self._configure()
                self._check_layout(create)
                self.sql.execute("PRAGMA journal_mode = WAL")
        except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:  # SQLite quotes names that are damaged
            raise explain(path, error) or StorageError(
                f"{path} cannot be opened as a relay's store: {error}"
            ) from error

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the file if what is done within fails."""
        try:
            yield
        except BaseException:
            self.sql.close()
            raise

    @property
    def public_sets(self) -> PublicSetTable:
        """The public sets of federations."""
        return PublicSetTable(self.sql)

    @property
    def tables(self) -> list[Table]:
        """All tables, in the order in which their records depend on each other."""
        return [
            *(self.epochs, self.federations, self.members, self.receipts, self.uploads),
            *(self.contributions, self.channel_states, self.replies, self.public_sets),
            *(self.operators, self.keys, self.leases, self.audit),
        ]

    def _configure(self) -> None:
        self.sql.execute("PRAGMA busy_timeout = 10000")
        self.sql.execute("PRAGMA synchronous = FULL")  # fsync at every commit
        self.sql.execute("PRAGMA wal_autocheckpoint = 16000")  # in pages: uploads wait during a checkpoint
        self.sql.execute("PRAGMA cache_size = -16000")

    def _check_layout(self, create: bool) -> None:
        """Create the tables in a new file; refuse a file of another layout."""
        (layout,) = self.sql.execute("PRAGMA user_version").fetchone()
        if layout == LAYOUT:
            self._check_tables()
        elif layout:
            age = "an older" if layout < LAYOUT else "a newer"
            raise ConfigurationError(
                f"{self.path} is a store of layout {layout}, which {age} version of consilience wrote; this version "
                f"reads layout {LAYOUT}. Serve it with the version that wrote it, or create the federation again in a "
                f"new file (--store)"
            )
        else:
            self._create_tables(create)

    def _check_tables(self) -> None:
        """Refuse a file whose tables are not declared as they were created."""
        declared = {sql for (sql,) in self.sql.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if not set(statements()) <= declared:  # backup tools and ANALYZE add tables of their own
            raise StorageError(f"{self.path} is damaged: its tables are not those of a relay's store; restore a backup")

    def _create_tables(self, create: bool) -> None:
        (tables,) = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables or not create:
            raise ConfigurationError(
                f"{self.path} is not a relay's store: it has no layout number; choose another file with --store"
            )
        with self.writing():
            if self.sql.execute("PRAGMA user_version").fetchone() == (0,):  # no other process was faster
                for statement in statements():
                    self.sql.execute(statement)
                EpochTable(self.sql).begin("created")
                KeyTable(self.sql).create()
                AuditTable(self.sql).append("created")
                self.sql.execute(f"PRAGMA user_version = {LAYOUT}")

    def close(self) -> None:
        """Close the file."""
        self.sql.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: everything written within is on disk afterwards, or nothing is."""
        self.sql.execute("BEGIN IMMEDIATE")
        self.audit.forget_last()
        try:
            self.check_lease()
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
            self.audit.forget_last()
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
    """The lock a relay holds while it serves a store, by whatever link: two would overwrite each other's sums."""
    file = lock_path(path)
    try:
        return lock_file(file, f"{path} is served by another relay; stop that one first")
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written: {error.strerror}; a relay locks its store with this file, so give its user the "
            f"right to write to that folder, and mount the disk for writing"
        ) from error


def lock_path(path: Path) -> Path:
    """The file that is locked while a store is served: beside the store itself, not beside a link to it."""
    real = path.resolve()
    return real.with_name(f"{real.name}-lock")


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk, or what SQLite may use of it, is full."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
