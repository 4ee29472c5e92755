"""The tables of a relay's store, and the SQL statements on them: one class for each thing that is stored.

An upload's body is stored as it was received, as long as a channel needs it. Of each member's receipts the newest ten
thousand are stored.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load, save

from consilience.relay.checksums import checksum
from consilience.relay.member_table import MemberRecord as MemberRecord
from consilience.relay.member_table import MemberTable as MemberTable
from consilience.relay.table import Row, Table, changed_columns

_EPOCHS = 2**40  # so many numbers an epoch may have
_HISTORY = 256  # versions of common values that are further behind the newest are deleted
_RECEIPTS = 10_000  # per member; older ones are deleted a tenth at a time
Arrays = Mapping[str, np.ndarray]


class EpochRecord(NamedTuple):
    """A time during which a store has one history: it begins when the store is made, and whenever it is restored.

    epoch: a random number. time: when it began, UTC.
    """

    id: int
    epoch: int
    reason: str
    time: str


class EpochTable(Table):
    """The epochs of a store."""

    name = "epochs"

    def current(self) -> int:
        """The number of the current epoch; 0 if its record is gone."""
        row = next(self.select(order="id DESC LIMIT 1"), None)
        return EpochRecord(*row).epoch if row else 0

    def begin(self, reason: str) -> int:
        """Begin a new epoch; its number."""
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        record = EpochRecord(self._next_id(), secrets.randbelow(_EPOCHS) + 1, reason, began)
        self.write(record, new=True)
        return record.epoch


class FederationRecord(NamedTuple):
    """One federation as it is stored; `Snapshot` explains revision, round and advanced_by."""

    id: int
    name: str
    charter: str
    revision: int
    round: int
    advanced_by: int


class FederationTable(Table):
    """Federations and the progress of each."""

    name = "federations"

    def all(self) -> list[FederationRecord]:
        """Every federation, oldest first."""
        return [FederationRecord(*row) for row in self.select(order="id")]

    def sound(self) -> list[FederationRecord]:
        """Every federation whose record is not damaged, oldest first."""
        return [FederationRecord(*row[:-1]) for row in self.select_raw(order="id") if self.is_sound(row)]

    def get(self, federation: int) -> FederationRecord | None:
        """One federation by its id."""
        row = self.find(federation)
        return FederationRecord(*row) if row else None

    def add(self, name: str, charter: str) -> int:
        """The id of a new federation; its name must be new."""
        number = self._next_id()
        self.write(FederationRecord(number, name, charter, revision=0, round=-1, advanced_by=-1), new=True)
        return number

    def update(self, federation: int, revision: int, round_: int, advanced_by: int) -> None:
        """Save the progress of a federation."""
        record = self.get(federation)
        assert record is not None
        self.update_row(record, record._replace(revision=revision, round=round_, advanced_by=advanced_by))


class StoredReceipt(NamedTuple):
    """The receipt of an accepted upload, and the SHA-256 by which the same upload is recognized."""

    sha256: str
    text: str


class ReceiptTable(Table):
    """Receipts of accepted uploads, by member and round."""

    name = "receipts"
    key = ("member", "round")

    def get(self, member: int, round_: int) -> StoredReceipt | None:
        """The receipt of a member's upload in a round."""
        row = self.find(member, round_)
        return StoredReceipt(row[2], row[4]) if row else None

    def add(self, member: MemberRecord, receipt: StoredReceipt, size: int) -> None:
        """Save the receipt of a member's newest upload, which is counted already."""
        self.write((member.id, member.round, receipt.sha256, size, receipt.text))
        if member.uploads % (_RECEIPTS // 10) == 0:
            self.sql.execute(
                "DELETE FROM receipts WHERE member = ?1 AND round < "
                "(SELECT round FROM receipts WHERE member = ?1 ORDER BY round DESC LIMIT 1 OFFSET ?2)",
                (member.id, _RECEIPTS - 1),
            )


class StoredUpload(NamedTuple):
    """A body as it was received, and the header that says what it holds."""

    header: str
    body: bytes


class UploadTable(Table):
    """Uploads whose tensors a channel needs.

    A record's checksum has the SHA-256 that the upload's receipt has, so that a body is hashed once.
    """

    name = "uploads"

    def checksum(self, row: Row) -> bytes:
        """The checksum of a record; no record that was written has one with values of other types."""
        number, member, header, body = row
        if not (isinstance(header, str) and isinstance(body, bytes)):
            return b""
        hashed = hashlib.sha256(header.encode("utf-8", "surrogateescape") + b"\n")
        hashed.update(body)
        return self._checksum(number, member, StoredUpload(header, body), hashed.hexdigest())

    def _checksum(self, number: int, member: int, upload: StoredUpload, sha256: str) -> bytes:
        return checksum(self.name, (number, member, len(upload.header), len(upload.body), sha256))

    def get(self, upload: int) -> StoredUpload | None:
        """An upload by its id; None if no channel needs it any more."""
        row = self.find(upload)
        return StoredUpload(row[2], row[3]) if row else None

    def add(self, member: int, upload: StoredUpload, sha256: str, replaced: Mapping[int, int]) -> int:
        """The id of a new upload.

        sha256: as in its receipt. replaced: the uploads that it replaces, and in how many channels. One that no other
        channel needs is overwritten, which costs less than to write a new record and delete the old.
        """
        for number, channels in replaced.items():
            values = (*upload, self._checksum(number, member, upload, sha256), number, member, channels)
            overwritten = self.sql.execute(
                "UPDATE uploads SET header = ?, body = ?, checksum = ? WHERE id = ?4 AND member = ?5 "
                "AND (SELECT count(*) FROM contributions WHERE upload = ?4) = ?6",
                values,
            )
            if overwritten.rowcount == 1:
                return number
        number = self._next_id()
        new = (number, member, *upload, self._checksum(number, member, upload, sha256))
        self.sql.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?)", new)
        return number

    def delete_unused(self, uploads: set[int]) -> None:
        """Delete those of the uploads that no channel needs."""
        self.sql.executemany(
            "DELETE FROM uploads WHERE id = ? AND NOT EXISTS (SELECT 1 FROM contributions WHERE upload = uploads.id)",
            [(upload,) for upload in uploads],
        )


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


class ContributionTable(Table):
    """The contributions that channels hold."""

    name = "contributions"
    key = ("federation", "channel", "number")

    def get(self, federation: int, channel: str, number: int) -> StoredContribution | None:
        """What a member has in a channel."""
        row = self.find(federation, channel, number)
        return StoredContribution(*row[2:]) if row else None

    def of(self, federation: int, number: int, channels: Collection[str]) -> dict[str, StoredContribution]:
        """What a member has in some channels, by channel."""
        where = f"federation = ? AND channel IN ({', '.join('?' * len(channels))}) AND number = ?"
        rows = self.select(where, (federation, *channels, number))
        return {row[1]: StoredContribution(*row[2:]) for row in rows}

    def get_with_upload(
        self, federation: int, channel: str, number: int
    ) -> tuple[StoredContribution, StoredUpload | None] | None:
        """What a member has in a channel, and the upload it is from, both from one moment."""
        row = self.sql.execute(
            "SELECT c.*, u.* FROM contributions c LEFT JOIN uploads u ON u.id = c.upload "
            "WHERE c.federation = ? AND c.channel = ? AND c.number = ?",
            (federation, channel, number),
        ).fetchone()
        if row is None:
            return None
        columns = 2 + len(StoredContribution._fields) + 1  # federation and channel, the record, the checksum
        stored, upload = StoredContribution(*self.checked(row[:columns])[2:]), row[columns:]
        return stored, None if upload[0] is None else StoredUpload(*UploadTable(self.sql).checked(upload)[2:])

    def all(self, federation: int, channel: str, before_round: int | None = None) -> list[StoredContribution]:
        """What all members have in a channel, by number; only those accepted before a round of the federation."""
        newest = 2**62 if before_round is None else before_round
        rows = self.select("federation = ? AND channel = ? AND round < ?", (federation, channel, newest), "number")
        return [StoredContribution(*row[2:]) for row in rows]

    def save(self, federation: int, channel: str, new: StoredContribution, old: StoredContribution | None) -> None:
        """Save a member's contribution to a channel, in place of its last; `old` is that one as it is stored now."""
        row = (federation, channel, *new)
        if old is None:
            self.write(row)
        elif old != new:
            columns, values = changed_columns(old, new)
            given = (*values, self.checksum(row), federation, channel, old.number)
            self.sql.execute(f"UPDATE contributions SET {columns} WHERE {self._by_key}", given)

    def delete(self, federation: int, channel: str, number: int | None = None) -> None:
        """Delete a member's contribution to a channel, or all of them."""
        which, given = ("", ()) if number is None else (" AND number = ?", (number,))
        self.sql.execute(
            f"DELETE FROM contributions WHERE federation = ? AND channel = ?{which}", (federation, channel, *given)
        )


class ChannelStateTable(Table):
    """Sums of standing means, and common values of moving means in the last version and some before it.

    The version before the last is there for the case that the last one is damaged, and all of them for a rollback.
    """

    name = "channel_states"
    key = ("federation", "channel", "version")

    def get(self, federation: int, channel: str) -> dict[str, np.ndarray] | None:
        """A channel's state as it was saved last."""
        row = next(self.select("federation = ? AND channel = ?", (federation, channel), "version DESC LIMIT 1"), None)
        return load(row[3]) if row else None

    def save(self, federation: int, channel: str, arrays: Arrays, *, keep_older: bool = False) -> None:
        """Save a channel's state, and delete older versions that are not kept any longer."""
        version = int(arrays["version"][0]) if "version" in arrays else 0
        body = save({key: np.asarray(array, order="C") for key, array in arrays.items()})
        self.write((federation, channel, version, body))
        for old in () if keep_older else self.versions(federation, channel):
            if not is_kept(old, version):
                self.delete(federation, channel, old)

    def versions(self, federation: int, channel: str) -> list[int]:
        """The versions of a channel that are stored, oldest first."""
        rows = self.sql.execute(
            "SELECT version FROM channel_states WHERE federation = ? AND channel = ? ORDER BY version",
            (federation, channel),
        )
        return [version for (version,) in rows]

    def delete(self, federation: int, channel: str, version: int) -> None:
        """Delete one version of a channel's state."""
        self.sql.execute(
            "DELETE FROM channel_states WHERE federation = ? AND channel = ? AND version = ?",
            (federation, channel, version),
        )


def is_kept(version: int, newest: int) -> bool:
    """Whether a version stays stored: one for each power of two that versions can be behind the newest."""
    behind = newest - version
    return behind == 0 or (0 < behind < _HISTORY and version % 2 ** (behind.bit_length() - 1) == 0)


class ReplyTable(Table):
    """By how much the common values of moving means moved to become each version."""

    name = "replies"
    key = ("federation", "channel", "version")

    def get(self, federation: int, channel: str, version: int) -> bytes | None:
        """By how much the common values moved to become this version, as a body."""
        row = self.find(federation, channel, version)
        return row[3] if row else None

    def add(self, federation: int, channel: str, version: int, body: bytes, oldest: int) -> None:
        """Save a reply, and delete those before version `oldest`."""
        self.write((federation, channel, version, body))
        self.sql.execute(
            "DELETE FROM replies WHERE federation = ? AND channel = ? AND version < ?", (federation, channel, oldest)
        )


class PublicSetTable(Table):
    """The public sets of federations, as they were uploaded."""

    name = "public_sets"
    key = ("federation",)

    def has(self, federation: int) -> bool:
        """Whether a federation's public set is here, damaged or not."""
        found = self.sql.execute("SELECT 1 FROM public_sets WHERE federation = ?", (federation,)).fetchone()
        return found is not None

    def get(self, federation: int) -> bytes | None:
        """The public set of a federation, as a body."""
        row = self.find(federation)
        return row[2] if row else None

    def save(self, federation: int, sha256: str, body: bytes) -> None:
        """Save the public set of a federation."""
        self.write((federation, sha256, body))


class OperatorRecord(NamedTuple):
    """A person who may see the state of the relay.

    expires: when the token expires, in seconds since 1970; 0 is never.
    """

    id: int
    name: str
    token_hash: bytes
    expires: int = 0


class OperatorTable(Table):
    """People who may see the state of the relay."""

    name = "operators"

    def get(self, operator: int) -> OperatorRecord | None:
        """One operator by its id."""
        row = self.find(operator)
        return OperatorRecord(*row) if row else None

    def all(self) -> list[OperatorRecord]:
        """Every operator, oldest first."""
        return [OperatorRecord(*row) for row in self.select(order="id")]

    def next_id(self) -> int:
        """An id that no operator has."""
        return self._next_id()
