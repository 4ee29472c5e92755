"""The state of a relay for its operators: federations, members, refusals and the health of the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from consilience.relay.checksums import DamagedRecord
from consilience.relay.federation import FederationService
from consilience.relay.member_table import STATES
from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord

_NAMED = 8  # members that a moving mean waits for and that are named; the others are counted
Described = dict[str, Any]


def describe_member(member: MemberRecord, seen: int) -> Described:
    """A member; `seen`: when a request of it was answered last, 0 if none was since the relay started."""
    return {
        "id": member.id,
        "federation": member.federation,
        "number": member.number,
        "name": member.name,
        "state": member.state(time.time()),
        "round": member.round,
        "uploads": member.uploads,
        "bytes": member.bytes,
        "seen": max(member.seen, seen),
    }


def read_members(store: Store, federation: int) -> tuple[list[MemberRecord], bool]:
    """The members of a federation whose records are sound, and whether all are."""
    rows = list(store.members.select_raw("federation = ?", (federation,), "number"))
    sound = [MemberRecord(*row[:-1]) for row in rows if store.members.is_sound(row)]
    return sound, len(sound) == len(rows)


def describe_federation(
    store: Store, service: FederationService, members: Collection[Described], pace: Mapping[str, Any]
) -> Described:
    """A federation: its progress, what its moving means wait for, and totals over its members."""
    snapshot, states = service.snapshot, Counter(member["state"] for member in members)
    return {
        "id": service.id,
        "name": service.charter.name,
        "method": str(service.charter.method["name"]),
        "served": True,
        "round": snapshot.round,
        "revision": snapshot.revision,
        "expected": snapshot.expected,
        "deadline": service.charter.rules.deadline,
        "channels": [_describe_channel(store, service, name, members) for name in service.channels],
        "members": {state: states[state] for state in STATES},
        "uploads": sum(member["uploads"] for member in members),
        "bytes": sum(member["bytes"] for member in members),
        **pace,
    }


def describe_lost(store: Store, federation: int, why: str) -> Described:
    """A federation that is not served because its records are damaged."""
    names = {record.id: record.name for record in store.federations.sound()}
    return {"id": federation, "name": names.get(federation, f"number {federation}"), "served": False, "why": why}


def _describe_channel(
    store: Store, service: FederationService, name: str, members: Iterable[Described]
) -> dict[str, Any]:
    """A channel; of a moving mean, its version and the members that have not uploaded since then."""
    snapshot = service.snapshot
    if name not in snapshot.moving:
        return {"name": name, "kind": "standing" if name in snapshot.standing else "pool"}
    waiting = snapshot.waiting[name]
    described = {"name": name, "kind": "moving", "version": snapshot.moving[name].version, "waiting": waiting}
    missing: list[str] = []
    if 0 < waiting < snapshot.uploaders[name]:
        try:
            uploaded = {stored.number for stored in store.contributions.all(service.id, name)}
        except DamagedRecord:  # the writer repairs it before it aggregates
            uploaded = set()
        awaited = [m for m in members if m["state"] not in ("away", "revoked") and m["number"] not in uploaded]
        missing = [m["name"] for m in awaited if name in service.charter.uploads_of(m["number"])]
    return described | {"missing": len(missing), "missing_names": missing[:_NAMED]}
