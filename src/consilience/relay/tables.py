"""The tables of a relay's store, and every SQL statement on them: one class for each thing that is stored.

An upload's body is stored as it was received, as long as a channel needs it. Of each member's receipts the newest ten
thousand are stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

_RECEIPTS = 10_000  # per member; older ones are deleted a tenth at a time
CREATE_TABLES = """
CREATE TABLE federations(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, charter TEXT NOT NULL, revision INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT -1, advanced_by INTEGER NOT NULL DEFAULT -1);
CREATE TABLE members(
    id INTEGER PRIMARY KEY, federation INTEGER NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL,
    token_hash BLOB NOT NULL, revoked INTEGER NOT NULL DEFAULT 0, away INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT -1, uploads INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE(federation, number), UNIQUE(federation, name));
CREATE TABLE receipts(
    member INTEGER NOT NULL, round INTEGER NOT NULL, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL,
    receipt TEXT NOT NULL, PRIMARY KEY(member, round)) WITHOUT ROWID;
CREATE TABLE uploads(id INTEGER PRIMARY KEY, member INTEGER NOT NULL, header TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE contributions(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, number INTEGER NOT NULL, upload INTEGER NOT NULL,
    version INTEGER NOT NULL, entries INTEGER NOT NULL, weight REAL NOT NULL, round INTEGER NOT NULL,
    PRIMARY KEY(federation, channel, number)) WITHOUT ROWID;
CREATE INDEX contributions_of_upload ON contributions(upload);
CREATE TABLE channel_states(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY(federation, channel));
CREATE TABLE replies(
    federation INTEGER NOT NULL, channel TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY(federation, channel, version));
"""
Arrays = Mapping[str, np.ndarray]


class FederationRecord(NamedTuple):
    """One federation as it is stored; `Snapshot` explains revision, round and advanced_by."""

    id: int
    name: str
    charter: str
    revision: int
    round: int
    advanced_by: int


class FederationTable:
    """Federations and the progress of each."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql

    def all(self) -> list[FederationRecord]:
        """Every federation, oldest first."""
        return [FederationRecord(*row) for row in self.sql.execute("SELECT * FROM federations ORDER BY id")]

    def get(self, federation: int) -> FederationRecord | None:
        """One federation by its id."""
        row = self.sql.execute("SELECT * FROM federations WHERE id = ?", (federation,)).fetchone()
        return FederationRecord(*row) if row else None

    def add(self, name: str, charter: str) -> int:
        """The id of a new federation; its name must be new."""
        made = self.sql.execute("INSERT INTO federations(name, charter) VALUES (?, ?)", (name, charter))
        return int(made.lastrowid or 0)

    def update(self, federation: int, revision: int, round_: int, advanced_by: int) -> None:
        """Save the progress of a federation."""
        self.sql.execute(
            "UPDATE federations SET revision = ?, round = ?, advanced_by = ? WHERE id = ?",
            (revision, round_, advanced_by, federation),
        )


class MemberRecord(NamedTuple):
    """One member of a federation as it is stored.

    id: unique in the store, part of the token. number: 0, 1, ... within the federation. round: of its last upload.
    away: it missed a deadline, and moving means do not wait for it.
    """

    id: int
    federation: int
    number: int
    name: str
    token_hash: bytes
    revoked: int
    away: int
    round: int
    uploads: int
    bytes: int


class MemberTable:
    """The members of every federation."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql

    def get(self, member: int) -> MemberRecord | None:
        """One member by its id."""
        row = self.sql.execute("SELECT * FROM members WHERE id = ?", (member,)).fetchone()
        return MemberRecord(*row) if row else None

    def of(self, federation: int) -> list[MemberRecord]:
        """The members of a federation, by number."""
        rows = self.sql.execute("SELECT * FROM members WHERE federation = ? ORDER BY number", (federation,))
        return [MemberRecord(*row) for row in rows]

    def add(self, federation: int, name: str) -> int:
        """The id of a new member; `set_token` must follow."""
        (number,) = self.sql.execute(
            "SELECT coalesce(max(number) + 1, 0) FROM members WHERE federation = ?", (federation,)
        ).fetchone()
        made = self.sql.execute(
            "INSERT INTO members(federation, number, name, token_hash) VALUES (?, ?, ?, x'')",
            (federation, number, name),
        )
        return int(made.lastrowid or 0)

    def set_token(self, member: int, token_hash: bytes) -> None:
        """Save the hash of a member's token."""
        self.sql.execute("UPDATE members SET token_hash = ? WHERE id = ?", (token_hash, member))

    def revoke(self, member: int) -> None:
        """Mark a member as revoked."""
        self.sql.execute("UPDATE members SET revoked = 1 WHERE id = ?", (member,))

    def set_away(self, federation: int, numbers: list[int], away: bool) -> None:
        """Set whether moving means wait for these members."""
        self.sql.executemany(
            "UPDATE members SET away = ? WHERE federation = ? AND number = ?",
            [(int(away), federation, number) for number in numbers],
        )

    def count_expected(self, federation: int) -> int:
        """How many members moving means wait for: neither revoked nor away."""
        (count,) = self.sql.execute(
            "SELECT count(*) FROM members WHERE federation = ? AND NOT revoked AND NOT away", (federation,)
        ).fetchone()
        return int(count)

    def revoked_with_contributions(self, federation: int) -> list[int]:
        """Numbers of revoked members that still have a contribution in a channel."""
        rows = self.sql.execute(
            "SELECT DISTINCT m.number FROM members m JOIN contributions c ON c.federation = m.federation "
            "AND c.number = m.number WHERE m.federation = ? AND m.revoked = 1 ORDER BY m.number",
            (federation,),
        )
        return [number for (number,) in rows]

    def totals(self, federation: int) -> dict[str, Any]:
        """Uploads and bytes accepted so far."""
        uploads, size = self.sql.execute(
            "SELECT coalesce(sum(uploads), 0), coalesce(sum(bytes), 0) FROM members WHERE federation = ?", (federation,)
        ).fetchone()
        return {"uploads": uploads, "bytes": size}


class StoredReceipt(NamedTuple):
    """The receipt of an accepted upload, and the SHA-256 by which the same upload is recognized."""

    sha256: str
    text: str


class ReceiptTable:
    """Receipts of accepted uploads, by member and round."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql

    def get(self, member: int, round_: int) -> StoredReceipt | None:
        """The receipt of a member's upload in a round."""
        row = self.sql.execute(
            "SELECT sha256, receipt FROM receipts WHERE member = ? AND round = ?", (member, round_)
        ).fetchone()
        return StoredReceipt(*row) if row else None

    def add(self, member: int, round_: int, receipt: StoredReceipt, size: int) -> None:
        """Save a receipt, and this round as the newest of the member."""
        self.sql.execute("INSERT INTO receipts VALUES (?, ?, ?, ?, ?)", (member, round_, receipt[0], size, receipt[1]))
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


class StoredUpload(NamedTuple):
    """A body as it was received, and the header that says what it holds."""

    header: str
    body: bytes


class StoredContribution(NamedTuple):
    """What one member has in one channel now.

    number: the member's. upload: where its tensors are. version: of the common values it was trained from, for a moving
    mean. entries: how many, for a pool. round: the federation's round when it was accepted.
    """

    number: int
    upload: int
    version: int
    entries: int
    weight: float
    round: int


class ContributionTable:
    """The contributions that channels hold, and the uploads they came in."""

    _COLUMNS = "number, upload, version, entries, weight, round"

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql

    def get(self, federation: int, channel: str, number: int) -> StoredContribution | None:
        """What a member has in a channel."""
        row = self.sql.execute(
            f"SELECT {self._COLUMNS} FROM contributions WHERE federation = ? AND channel = ? AND number = ?",
            (federation, channel, number),
        ).fetchone()
        return StoredContribution(*row) if row else None

    def all(self, federation: int, channel: str, before_round: int | None = None) -> list[StoredContribution]:
        """What all members have in a channel, by number; only those accepted before a round of the federation."""
        rows = self.sql.execute(
            f"SELECT {self._COLUMNS} FROM contributions WHERE federation = ? AND channel = ? AND round < ? "
            "ORDER BY number",
            (federation, channel, 2**62 if before_round is None else before_round),
        )
        return [StoredContribution(*row) for row in rows]

    def save(self, federation: int, channel: str, contribution: StoredContribution) -> None:
        """Save a member's contribution to a channel, in place of its last."""
        self.sql.execute(
            "INSERT OR REPLACE INTO contributions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (federation, channel, *contribution)
        )

    def delete(self, federation: int, channel: str, number: int | None = None) -> None:
        """Delete a member's contribution to a channel, or all of them."""
        which, given = ("", ()) if number is None else (" AND number = ?", (number,))
        self.sql.execute(
            f"DELETE FROM contributions WHERE federation = ? AND channel = ?{which}", (federation, channel, *given)
        )

    def add_upload(self, member: int, upload: StoredUpload) -> int:
        """The id of a new upload."""
        made = self.sql.execute("INSERT INTO uploads(member, header, body) VALUES (?, ?, ?)", (member, *upload))
        return int(made.lastrowid or 0)

    def upload(self, upload: int) -> StoredUpload | None:
        """An upload by its id; None if no channel needs it any more."""
        row = self.sql.execute("SELECT header, body FROM uploads WHERE id = ?", (upload,)).fetchone()
        return StoredUpload(*row) if row else None

    def delete_unused(self, uploads: set[int]) -> None:
        """Delete those of the uploads that no channel needs."""
        self.sql.executemany(
            "DELETE FROM uploads WHERE id = ? AND NOT EXISTS (SELECT 1 FROM contributions WHERE upload = uploads.id)",
            [(upload,) for upload in uploads],
        )


class ChannelStateTable:
    """Sums of standing means, common values of moving means, and the replies by which these moved."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql

    def get(self, federation: int, channel: str) -> dict[str, np.ndarray] | None:
        """A channel's state as it was saved."""
        row = self.sql.execute(
            "SELECT state FROM channel_states WHERE federation = ? AND channel = ?", (federation, channel)
        ).fetchone()
        return load(row[0]) if row else None

    def save(self, federation: int, channel: str, arrays: Arrays) -> None:
        """Save a channel's state."""
        body = save({key: np.asarray(array, order="C") for key, array in arrays.items()})
        self.sql.execute("INSERT OR REPLACE INTO channel_states VALUES (?, ?, ?)", (federation, channel, body))

    def reply(self, federation: int, channel: str, version: int) -> bytes | None:
        """By how much the common values moved to become this version, as a body."""
        row = self.sql.execute(
            "SELECT body FROM replies WHERE federation = ? AND channel = ? AND version = ?",
            (federation, channel, version),
        ).fetchone()
        return row[0] if row else None

    def add_reply(self, federation: int, channel: str, version: int, body: bytes, oldest: int) -> None:
        """Save a reply, and delete those before version `oldest`."""
        self.sql.execute("INSERT INTO replies VALUES (?, ?, ?, ?)", (federation, channel, version, body))
        self.sql.execute(
            "DELETE FROM replies WHERE federation = ? AND channel = ? AND version < ?", (federation, channel, oldest)
        )
