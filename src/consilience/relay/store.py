"""What a relay keeps on disk: federations, members, their newest uploads, sums and replies, in one SQLite file.

Write-ahead log, synced at every commit; one connection writes, others read beside it. A member's upload stays as it
came, as long as a channel still needs it; of receipts the newest ten thousand of each member stay.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from consilience.errors import ConfigurationError, StorageError
from consilience.files import lock_file

_FORM = 1
_RECEIPTS = 10_000  # of a member, its newest, and now and then a tenth more
_TABLES = """
CREATE TABLE federations(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, charter TEXT NOT NULL, revision INTEGER NOT NULL DEFAULT 0,
    newest INTEGER NOT NULL DEFAULT -1, newest_by INTEGER NOT NULL DEFAULT -1);
CREATE TABLE members(
    id INTEGER PRIMARY KEY, federation INTEGER NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL,
    token BLOB NOT NULL, revoked INTEGER NOT NULL DEFAULT 0, away INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT -1, uploads INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE(federation, number), UNIQUE(federation, name));
CREATE TABLE receipts(
    member INTEGER NOT NULL, round INTEGER NOT NULL, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL,
    receipt TEXT NOT NULL, PRIMARY KEY(member, round)) WITHOUT ROWID;
CREATE TABLE uploads(id INTEGER PRIMARY KEY, member INTEGER NOT NULL, put TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE entries(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, number INTEGER NOT NULL, upload INTEGER NOT NULL,
    version INTEGER NOT NULL, weight REAL NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY(federation, channel, number)) WITHOUT ROWID;
CREATE INDEX of_upload ON entries(upload);
CREATE TABLE states(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY(federation, channel));
CREATE TABLE replies(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY(federation, channel, version));
"""
Arrays = Mapping[str, np.ndarray]


class Member(NamedTuple):
    """One member of a federation as the store has it."""

    id: int
    federation: int
    number: int
    name: str
    token: bytes
    revoked: int
    away: int
    round: int
    uploads: int
    bytes: int


class Entry(NamedTuple):
    """What a member has put into a channel: where it lies, what it trained from, what it weighs, and when it came.

    at: the round the federation had come to when it came, which no clock moves.
    """

    number: int
    upload: int
    version: int
    weight: float
    at: int


class Upload(NamedTuple):
    """A body as it came, and what was said beside it."""

    put: str
    body: bytes


class Store:
    """One connection to the file."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if not create and not path.is_file():
            raise ConfigurationError(f"{path}: no such store; `consilience relay create FILE --store {path}` makes one")
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)  # everybody's contributions: for nobody else's eyes
            self.sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
            self._prepare(create)
        except (sqlite3.DatabaseError, OSError) as error:
            raise StorageError(f"{path} cannot be opened as a relay's store: {error}") from error

    def _prepare(self, create: bool) -> None:
        self.sql.execute("PRAGMA busy_timeout = 10000")
        self.sql.execute("PRAGMA synchronous = FULL")
        self.sql.execute("PRAGMA wal_autocheckpoint = 16000")  # pages: uploads wait while they are brought home
        self.sql.execute("PRAGMA cache_size = -16000")
        (form,) = self.sql.execute("PRAGMA user_version").fetchone()
        if form == 0:
            (others,) = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if others or not create:
                raise ConfigurationError(f"{self.path} is no relay's store; name another with --store")
            with self.writing():
                if self.sql.execute("PRAGMA user_version").fetchone() == (0,):
                    for statement in _TABLES.split(";\n"):
                        self.sql.execute(statement)
                    self.sql.execute(f"PRAGMA user_version = {_FORM}")
        elif form != _FORM:
            raise ConfigurationError(f"{self.path} has form {form}; this relay reads {_FORM}")
        self.sql.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        """Let go of the file."""
        self.sql.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """All or nothing: on disk when it is left, or as it was before."""
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
        """A part of what is being written: of one that fails nothing stays, and the rest goes on."""
        self.sql.execute("SAVEPOINT step")
        try:
            yield
        except BaseException:
            if self.sql.in_transaction:  # a full disk may have ended it all
                self.sql.execute("ROLLBACK TO step")
            raise
        finally:
            if self.sql.in_transaction:
                self.sql.execute("RELEASE step")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Everything read within is of one moment."""
        self.sql.execute("BEGIN")
        try:
            yield
        finally:
            self.sql.execute("ROLLBACK")

    @property
    def touched(self) -> int:
        """Changes whenever another connection has written."""
        (version,) = self.sql.execute("PRAGMA data_version").fetchone()
        return int(version)

    # -- federations and members ---------------------------------------------------------------------------------------

    def federations(self) -> list[tuple[int, str, str, int]]:
        """Number, name, charter and revision of each."""
        return self.sql.execute("SELECT id, name, charter, revision FROM federations ORDER BY id").fetchall()

    def federation(self, number: int) -> tuple[str, int, int, int] | None:
        """Charter, revision, the round it has come to, and by whom."""
        row: tuple[str, int, int, int] | None = self.sql.execute(
            "SELECT charter, revision, newest, newest_by FROM federations WHERE id = ?", (number,)
        ).fetchone()
        return row

    def add_federation(self, name: str, charter: str) -> int:
        """A new federation's number; no other may have its name."""
        made = self.sql.execute("INSERT INTO federations(name, charter) VALUES (?, ?)", (name, charter))
        return int(made.lastrowid or 0)

    def revise(self, federation: int, revision: int, newest: int, by: int) -> None:
        """Keep how often anything has changed, the round the federation has come to, and by whom."""
        self.sql.execute(
            "UPDATE federations SET revision = ?, newest = ?, newest_by = ? WHERE id = ?",
            (revision, newest, by, federation),
        )

    def member(self, number: int) -> Member | None:
        """One member, by its number in the store."""
        row = self.sql.execute("SELECT * FROM members WHERE id = ?", (number,)).fetchone()
        return Member(*row) if row else None

    def members(self, federation: int) -> list[Member]:
        """The members of a federation."""
        rows = self.sql.execute("SELECT * FROM members WHERE federation = ? ORDER BY number", (federation,))
        return [Member(*row) for row in rows]

    def add_member(self, federation: int, name: str) -> int:
        """A new member's number in the store; its token comes with `set_token`."""
        (number,) = self.sql.execute(
            "SELECT coalesce(max(number) + 1, 0) FROM members WHERE federation = ?", (federation,)
        ).fetchone()
        made = self.sql.execute(
            "INSERT INTO members(federation, number, name, token) VALUES (?, ?, ?, x'')", (federation, number, name)
        )
        return int(made.lastrowid or 0)

    def set_token(self, member: int, hashed: bytes) -> None:
        """Keep a token's hash."""
        self.sql.execute("UPDATE members SET token = ? WHERE id = ?", (hashed, member))

    def revoke(self, member: int) -> None:
        """From now on its token opens nothing."""
        self.sql.execute("UPDATE members SET revoked = 1 WHERE id = ?", (member,))

    def expected(self, federation: int) -> int:
        """How many members are waited for."""
        (count,) = self.sql.execute(
            "SELECT count(*) FROM members WHERE federation = ? AND NOT revoked AND NOT away", (federation,)
        ).fetchone()
        return int(count)

    def revoked(self, federation: int) -> list[int]:
        """Numbers of revoked members of whom a channel still has something."""
        rows = self.sql.execute(
            "SELECT DISTINCT m.number FROM members m JOIN entries e ON e.federation = m.federation "
            "AND e.number = m.number WHERE m.federation = ? AND m.revoked = 1 ORDER BY m.number",
            (federation,),
        )
        return [number for (number,) in rows]

    def set_away(self, federation: int, numbers: list[int], away: bool) -> None:
        """Say who is not waited for any more, or is again."""
        self.sql.executemany(
            "UPDATE members SET away = ? WHERE federation = ? AND number = ?",
            [(int(away), federation, number) for number in numbers],
        )

    # -- uploads -------------------------------------------------------------------------------------------------------

    def receipt(self, member: int, round_: int) -> tuple[str, str] | None:
        """SHA-256 and receipt of what a member put in a round."""
        row: tuple[str, str] | None = self.sql.execute(
            "SELECT sha256, receipt FROM receipts WHERE member = ? AND round = ?", (member, round_)
        ).fetchone()
        return row

    def keep_receipt(self, member: int, round_: int, sha256: str, size: int, receipt: str) -> None:
        """Remember that a round was taken; the member has come so far."""
        self.sql.execute("INSERT INTO receipts VALUES (?, ?, ?, ?, ?)", (member, round_, sha256, size, receipt))
        (uploads,) = self.sql.execute(
            "UPDATE members SET round = ?, uploads = uploads + 1, bytes = bytes + ? WHERE id = ? RETURNING uploads",
            (round_, size, member),
        ).fetchone()
        if uploads % (_RECEIPTS // 10) == 0:
            self.sql.execute(
                "DELETE FROM receipts WHERE member = ?1 AND round < "
                "(SELECT round FROM receipts WHERE member = ?1 ORDER BY round DESC LIMIT 1 OFFSET ?2)",
                (member, _RECEIPTS - 1),
            )

    def add_upload(self, member: int, put: str, body: bytes) -> int:
        """Keep a body."""
        made = self.sql.execute("INSERT INTO uploads(member, put, body) VALUES (?, ?, ?)", (member, put, body))
        return int(made.lastrowid or 0)

    def upload(self, number: int) -> Upload | None:
        """A body that was kept; None where nothing needs it any more."""
        row = self.sql.execute("SELECT put, body FROM uploads WHERE id = ?", (number,)).fetchone()
        return Upload(*row) if row else None

    def tidy(self, uploads: set[int]) -> None:
        """Let those go that no channel needs."""
        self.sql.executemany(
            "DELETE FROM uploads WHERE id = ? AND NOT EXISTS (SELECT 1 FROM entries WHERE upload = uploads.id)",
            [(number,) for number in uploads],
        )

    # -- entries -------------------------------------------------------------------------------------------------------

    def entry(self, federation: int, channel: str, number: int) -> Entry | None:
        """What a member has put into a channel."""
        row = self.sql.execute(
            "SELECT number, upload, version, weight, at FROM entries WHERE federation = ? AND channel = ? "
            "AND number = ?",
            (federation, channel, number),
        ).fetchone()
        return Entry(*row) if row else None

    def entries(self, federation: int, channel: str, before: int | None = None) -> list[Entry]:
        """What all have put into a channel, in the order of their numbers; only what came `before` a round."""
        rows = self.sql.execute(
            "SELECT number, upload, version, weight, at FROM entries WHERE federation = ? AND channel = ? AND at < ? "
            "ORDER BY number",
            (federation, channel, 2**62 if before is None else before),
        )
        return [Entry(*row) for row in rows]

    def set_entry(self, federation: int, channel: str, entry: Entry) -> None:
        """Let this be what a member has in a channel."""
        self.sql.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", (federation, channel, *entry))

    def drop_entries(self, federation: int, channel: str, number: int | None = None) -> None:
        """Let a member's go, or everybody's."""
        which, given = ("", ()) if number is None else (" AND number = ?", (number,))
        self.sql.execute(
            f"DELETE FROM entries WHERE federation = ? AND channel = ?{which}", (federation, channel, *given)
        )

    # -- sums and common values ----------------------------------------------------------------------------------------

    def state(self, federation: int, channel: str) -> dict[str, np.ndarray] | None:
        """Sums, or common values, as they were kept."""
        row = self.sql.execute(
            "SELECT state FROM states WHERE federation = ? AND channel = ?", (federation, channel)
        ).fetchone()
        return load(row[0]) if row else None

    def keep_state(self, federation: int, channel: str, arrays: Arrays) -> None:
        """Keep sums or common values."""
        body = save({key: np.asarray(array, order="C") for key, array in arrays.items()})
        self.sql.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (federation, channel, body))

    def reply(self, federation: int, channel: str, version: int) -> bytes | None:
        """By how much common values moved to become this version."""
        row = self.sql.execute(
            "SELECT body FROM replies WHERE federation = ? AND channel = ? AND version = ?",
            (federation, channel, version),
        ).fetchone()
        return row[0] if row else None

    def keep_reply(self, federation: int, channel: str, version: int, body: bytes, oldest: int) -> None:
        """Keep a reply, and let those before `oldest` go."""
        self.sql.execute("INSERT INTO replies VALUES (?, ?, ?, ?)", (federation, channel, version, body))
        self.sql.execute(
            "DELETE FROM replies WHERE federation = ? AND channel = ? AND version < ?", (federation, channel, oldest)
        )

    # -- looking -------------------------------------------------------------------------------------------------------

    def totals(self, federation: int) -> dict[str, Any]:
        """How much was taken so far."""
        uploads, size = self.sql.execute(
            "SELECT coalesce(sum(uploads), 0), coalesce(sum(bytes), 0) FROM members WHERE federation = ?", (federation,)
        ).fetchone()
        return {"uploads": uploads, "bytes": size}


def lock_store(path: Path) -> IO[bytes]:
    """The lock that one relay holds on a store while it serves it: two would overwrite each other's sums."""
    return lock_file(path.with_name(f"{path.name}-lock"), f"{path} is served by another relay; stop that one first")


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk, or what SQLite may use of it, is full."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
