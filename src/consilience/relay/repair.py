"""What a relay does about damaged records: it drops them, and rebuilds what others are enough for.

A contribution whose record or body is damaged is dropped, and its member may upload it again; sums are then recounted.
Common values are rebuilt, to the bit, from the version before and the reply that moved them. A member whose record is
damaged is revoked: whether it was before cannot be known. Nothing that is damaged is ever served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from consilience.relay.integrity import check_indexes
from consilience.relay.messages import Messages
from consilience.relay.renumber import renumber
from consilience.relay.store import Store
from consilience.relay.table import Row, Table
from consilience.relay.tables import FederationRecord, MemberRecord
from consilience.wire.charter import read_charter


@dataclass
class Repairs:
    """What was repaired, and what could not be."""

    messages: list[str] = field(default_factory=list)
    dropped: bool = False
    """Whether a contribution or a sum was dropped: sums must be recounted."""
    lost: dict[int, str] = field(default_factory=dict)
    """Federations that cannot be served, and why."""

    def note(self, table: Table, row: Row, what: str) -> None:
        """Report a damaged record."""
        self.messages.append(f"damaged: {table.name}, {table.describe(row)}; {what}")


def repair_store(store: Store, *, bodies: bool) -> Repairs:
    """Drop or rebuild every damaged record, within a transaction of the caller.

    bodies: check uploads, receipts and the audit trail too; without, these are checked when they are read.
    """
    done = Repairs()
    for line in check_indexes(store):
        done.messages.append(f"damaged: an index, {line}; all indexes are built again")
        done.dropped = True
    if done.messages:
        store.sql.execute("REINDEX")
    if _drop_damaged(store.epochs, done, "a new epoch begins"):
        store.epochs.begin("repaired")
    federations = _repair_federations(store, done)
    _repair_members(store, done)
    _drop_damaged(store.operators, done, "this operator needs a new token")
    _drop_damaged(store.leases, done, "the relay takes its lease again with the next commit")
    if not store.keys.repair(partial(done.note, store.keys)):
        done.lost |= {record.id: "the key that signs receipts is damaged" for record in federations}
    if bodies:
        store.audit.repair(partial(done.note, store.audit))
        _drop_damaged(store.receipts, done, "it is dropped")
        _repair_uploads(store, done)
        _drop_damaged(store.public_sets, done, "the member that has it uploads it again")
    _repair_contributions(store, done)
    _drop_damaged(store.replies, done, "members who need it get all common values")
    _repair_states(store, federations, done)
    return done


def _sound(table: Table, on_damage: Callable[[Row], None]) -> list[Row]:
    """The sound records of a table, without their checksums."""
    found = []
    for row in table.select_raw():
        if table.is_sound(row):
            found.append(row[:-1])
        else:
            on_damage(row)
    return found


def _drop_damaged(table: Table, done: Repairs, what: str) -> bool:
    """Delete the damaged records of a table; whether there were any."""
    damaged = [row for row in table.select_raw() if not table.is_sound(row)]
    for row in damaged:
        done.note(table, row, what)
    if not all([table.delete_row(row) for row in damaged]):  # the key is what is damaged
        table.write_all_again(_sound(table, lambda row: None))
    return bool(damaged)


def _repair_federations(store: Store, done: Repairs) -> list[FederationRecord]:
    def lose(row: Row) -> None:
        done.note(store.federations, row, "it is not served; restore a backup")
        done.lost[row[0]] = "its record is damaged"

    return [FederationRecord(*row) for row in _sound(store.federations, lose)]


def _repair_members(store: Store, done: Repairs) -> None:
    damaged: list[Row] = []
    sound = [MemberRecord(*row) for row in _sound(store.members, damaged.append)]
    if not damaged:
        return
    places, ids = {(m.federation, m.number) for m in sound}, {m.id for m in sound}
    federations = {row[0] for row in store.federations.select_raw()}
    largest = max((m.number for m in sound), default=-1) + len(damaged)
    for row in damaged:
        record = MemberRecord(*row[:-1])
        done.note(store.members, row, f"the member {record.name!r:.80} is revoked; invite it again")
        place, whole = (record.federation, record.number), all(isinstance(value, int) for value in row[:3])
        known = whole and record.federation in federations and 0 <= record.number <= largest
        if known and place not in places and record.id not in ids:
            sound.append(MemberRecord(record.id, *place, f"damaged-{record.id}", b"", 1, 0, -1, 0, 0))
            places.add(place)
    store.members.write_all_again(sound)


def _repair_uploads(store: Store, done: Repairs) -> None:
    damaged: list[Row] = []
    for row in store.uploads.select_raw():
        if not store.uploads.is_sound(row):
            damaged.append(row[:1])
            done.note(store.uploads, row, "its contributions are dropped")
    store.sql.executemany("DELETE FROM uploads WHERE id = ?", damaged)


def _repair_contributions(store: Store, done: Repairs) -> None:
    before = len(done.messages)
    table = store.contributions
    uploads = {number for (number,) in store.sql.execute("SELECT id FROM uploads")}
    members = set(store.sql.execute("SELECT federation, number FROM members"))
    sound = []
    for row in _sound(table, lambda row: done.note(table, row, "it is dropped; its member may upload it again")):
        federation, _, number, upload = row[:4]
        if upload not in uploads:
            done.note(table, row, "its upload is gone; it is dropped, and its member may upload it again")
        elif (federation, number) not in members:
            done.note(table, row, "its member's record is gone; it is dropped")
        else:
            sound.append(row)
    if len(done.messages) > before:
        done.dropped = True
        table.write_all_again(sound)
        unused = uploads - {row[3] for row in sound}
        store.uploads.delete_unused(unused)


def _repair_states(store: Store, federations: list[FederationRecord], done: Repairs) -> None:
    table = store.channel_states
    damaged = [row for row in table.select_raw() if not table.is_sound(row)]
    _drop_damaged(table, done, "sums are counted again, and common values continue from an older version")
    done.dropped |= bool(damaged)
    for record in federations:
        charter = read_charter(record.charter)
        messages = Messages(charter)
        for name in (name for name, channel in charter.channels.items() if channel.moves):
            states = list(table.select("federation = ? AND channel = ?", (record.id, name), "version DESC LIMIT 1"))
            if not states:
                done.lost[record.id] = f"the common values of {name} are damaged"
                continue
            rebuilt = _rebuild(store, messages, states[0]) if damaged else None
            if rebuilt is not None:
                table.write(rebuilt)
                done.messages.append(f"{record.name}: common values of {name}, version {rebuilt[2]}, were rebuilt")
            have = states[0][2] if rebuilt is None else rebuilt[2]
            if any(_may_be_newer(row, record.id, name, have, federations) for row in damaged):
                version = renumber(store, record.id, name)
                done.messages.append(f"{record.name}: common values of {name} continue from {have}, as {version}")


def _may_be_newer(row: Row, federation: int, channel: str, version: int, federations: list[FederationRecord]) -> bool:
    """Whether a damaged state may be a newer one of this channel; its own key may be what is damaged."""
    if row[0] not in {record.id for record in federations} or not isinstance(row[2], int):
        return True
    return row[:2] == (federation, channel) and row[2] > version


def _rebuild(store: Store, messages: Messages, row: Row) -> Row | None:
    """The newest state that follows from this one and the replies after it; None if there is no reply after it."""
    federation, channel, version, state = row
    arrays: dict[str, Any] = dict(load(state))
    first = version
    while (body := store.replies.get(federation, channel, version + 1)) is not None:
        moved = messages.reply_codec(channel).read(body)
        for key in [key for key in arrays if key.startswith("common.")]:
            arrays[key] = arrays[key] + moved[f"{channel}.{key.removeprefix('common.')}"]
        version += 1
    if version == first:
        return None
    residuals = {key: array * 0 for key, array in arrays.items() if key.startswith("errors.")}  # gone with the state
    return federation, channel, version, save({**arrays, **residuals, "version": np.array([version])})
