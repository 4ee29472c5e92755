"""Log lines about members that other processes have invited, revoked or given new tokens."""

from __future__ import annotations

import logging

from consilience.relay.logs import event
from consilience.relay.store import Store

log = logging.getLogger("consilience.relay")
_QUERY = "SELECT id, revoked, token_hash, expires FROM members"
_NAMES = "SELECT m.name, f.name FROM members m JOIN federations f ON f.id = m.federation WHERE m.id = ?"
_MESSAGES = {
    "member-invited": "a member was invited",
    "member-revoked": "a member was revoked",
    "member-invited-again": "a revoked member was invited again",
    "token-rotated": "a member has a new token",
}


class MembershipLog:
    """Compares members with those that were read last; the first reading is the state at the start."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bool, int]] | None = None

    def note(self, store: Store) -> None:
        """Log what has changed; called by the writer when another process has written."""
        found = {number: (revoked == 1, hash(rest)) for number, revoked, rest in _rows(store)}
        known, self._known = self._known, found
        if known is None:
            return
        for number, now in found.items():
            what = _change(known.get(number), now)
            if what:
                self._report(store, number, what)

    def _report(self, store: Store, number: int, what: str) -> None:
        row = store.sql.execute(_NAMES, (number,)).fetchone()
        member, federation = row if row else (number, "")
        log.info("%s", _MESSAGES[what], extra=event(what, federation=federation, member=member))


def _rows(store: Store) -> list[tuple[int, int, tuple[bytes, int]]]:
    return [(number, revoked, (token, expires)) for number, revoked, token, expires in store.sql.execute(_QUERY)]


def _change(before: tuple[bool, int] | None, now: tuple[bool, int]) -> str | None:
    if before is None:
        return "member-invited"
    if before[0] != now[0]:
        return "member-revoked" if now[0] else "member-invited-again"
    return "token-rotated" if before[1] != now[1] else None
