"""Builds the status of a relay from its store and its writer, and what of it has changed since the last time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from consilience.relay.checksums import DamagedRecord
from consilience.relay.federation import FederationService
from consilience.relay.recent_activity import Refusal
from consilience.relay.status import (
    Described,
    describe_federation,
    describe_lost,
    describe_member,
    read_members,
)
from consilience.relay.store import Store
from consilience.relay.store_health import store_health
from consilience.relay.tables import EpochRecord
from consilience.relay.writer import Writer
from consilience.wire.charter import PROTOCOL

_ALL_AGAIN = 20.0  # seconds until all members are read again: most changes are noticed without
_SHARE = 50  # reading all members takes at most this part of the time
_NO_PACE = {"uploads_per_minute": 0.0, "rounds_per_hour": 0.0, "minutes": [0]}
Delta = dict[str, Any]


@dataclass(frozen=True)
class LiveCounts:
    """What the event loop has counted, copied for the thread that builds the status."""

    uploaded: set[int] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)
    paces: dict[int, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    started: float = 0.0


class StatusBuilder:
    """The status as it was last built. One call at a time, from any thread."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self.path, self.writer = path, writer
        self._store = Store(path)
        self._seen: dict[int, int] = {}
        self._members: dict[int, dict[int, Described]] = {}  # by federation, then by id
        self._federation_of: dict[int, int] = {}
        self._federations: dict[int, Described] = {}
        self._marks: dict[int, tuple[int, int]] = {}  # revision and expected members, when a federation was read
        self._rest: dict[str, Described] = {}
        self._read_all_at, self._took = float("-inf"), 0.0

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def full(self) -> Delta:
        """All of the status, as it was last built."""
        members = [member for of in self._members.values() for member in of.values()]
        return {**self._rest, "federations": list(self._federations.values()), "members": members}

    def update(self, live: LiveCounts) -> Delta:
        """Build the status again; what of it has changed: whole parts, and records of federations and members."""
        seen = self._note_seen(live.seen)
        with self._store.reading():
            members = self._read_members(live)
            federations = self._build_federations(live, {member["federation"] for member in members})
            rest = self._build_rest(live)
        delta: Delta = {"federations": federations, "members": members, "seen": seen}
        changed = {key: part for key, part in rest.items() if self._rest.get(key) != part}
        self._rest = rest
        return {key: part for key, part in {**changed, **delta}.items() if part}

    # -- members -------------------------------------------------------------------------------------------------------

    def _read_members(self, live: LiveCounts) -> list[Described]:
        """The members that have changed."""
        began = time.monotonic()
        if began - self._read_all_at > max(_ALL_AGAIN, _SHARE * self._took):
            changed = [m for federation in list(self.writer.federations) for m in self._read_federation(federation)]
            self._read_all_at, self._took = began, time.monotonic() - began
            return changed
        changed = []
        for id_, service in self._services():
            if id_ not in self._marks or self._marks[id_][1] != service.snapshot.expected:
                changed += self._read_federation(id_)
        changed += [self._read_member(member) for member in live.uploaded]
        return [member for member in changed if member]

    def _note_seen(self, seen: dict[int, int]) -> Delta:
        """Note when members were seen; those that are known, by id."""
        self._seen |= seen
        known: Delta = {}
        for id_, time_ in seen.items():
            of = self._members.get(self._federation_of.get(id_, 0), {})
            if id_ in of and of[id_]["seen"] < time_:
                of[id_] = of[id_] | {"seen": time_}
                known[str(id_)] = time_
        return known

    def _read_federation(self, federation: int) -> list[Described]:
        """Read the members of a federation again; those that have changed."""
        records, sound = read_members(self._store, federation)
        if not sound:
            self.writer.request_repair()
        known = self._members.get(federation, {})
        new = {record.id: describe_member(record, self._seen.get(record.id, 0)) for record in records}
        self._members[federation] = new
        self._federation_of |= dict.fromkeys(new, federation)
        return [member for id_, member in new.items() if known.get(id_) != member]

    def _read_member(self, member: int) -> Described:
        """Read one member again; empty if it has not changed, or cannot be read."""
        try:
            record = self._store.members.get(member)
        except DamagedRecord:
            self.writer.request_repair()
            return {}
        if record is None:
            return {}
        described = describe_member(record, self._seen.get(member, 0))
        known = self._members.setdefault(record.federation, {})
        self._federation_of[member] = record.federation
        if known.get(member) == described:
            return {}
        known[member] = described
        return described

    # -- federations and the rest --------------------------------------------------------------------------------------

    def _services(self) -> list[tuple[int, FederationService]]:
        return list(self.writer.federations.items())

    def _build_federations(self, live: LiveCounts, changed_members: set[int]) -> list[Described]:
        """The federations that have changed."""
        before, now = self._federations, {}
        for id_, service in self._services():
            mark = service.snapshot.revision, service.snapshot.expected
            pace = live.paces.get(id_, _NO_PACE)
            if id_ in before and id_ not in changed_members and self._marks.get(id_) == mark:
                now[id_] = before[id_] | pace
            else:
                members = self._members.get(id_, {}).values()
                now[id_] = describe_federation(self._store, service, list(members), pace)
                self._marks[id_] = mark
        now |= {id_: describe_lost(self._store, id_, why) for id_, why in list(self.writer.loaded.lost.items())}
        self._federations = now
        return [described for id_, described in now.items() if before.get(id_) != described]

    def _build_rest(self, live: LiveCounts) -> dict[str, Described]:
        last = [self._describe_refusal(refusal) for refusal in live.refusals]
        epoch = self._epoch()
        return {
            "relay": {
                "version": _version(),
                "protocol": PROTOCOL,
                "epoch": epoch.epoch,
                "epoch_began": epoch.time,
                "started": int(live.started),
            },
            "store": store_health(self.path, self.writer),
            "refusals": {"count": sum(live.refused.values()), "codes": live.refused, "last": last},
        }

    def _describe_refusal(self, refusal: Refusal) -> Described:
        federation = refusal.federation or self._federation_of.get(refusal.member, 0)
        member = self._members.get(federation, {}).get(refusal.member)
        who = {"federation": federation, "member": member["name"] if member else None}
        return {**refusal._asdict(), "time": int(refusal.time), **who}

    def _epoch(self) -> EpochRecord:
        try:
            row = next(self._store.epochs.select(order="id DESC LIMIT 1"), None)
        except DamagedRecord:
            row = None
        return EpochRecord(*row) if row else EpochRecord(0, 0, "", "")


def _version() -> str:
    try:
        return version("consilience")
    except PackageNotFoundError:  # run from a folder
        return "unknown"
