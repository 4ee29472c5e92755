"""The table of members: who they are, which tokens they have, and what they have uploaded."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from consilience.relay.table import Table

_CLOCK_SET_BACK = 60  # seconds by which a saved time is later than a newer one only if the clock was set back
_LONGEST_AWAY = 10  # after more missed deadlines a member is away for no more than 2 ** this uploads
STATES = ("active", "away", "invited", "expired", "revoked")
"""What a member can be: it has uploaded; it missed a deadline; it has not uploaded yet; its token is not valid."""
TokenHash = bytes
REINVITED = 2
"""`revoked` of a member that was revoked and invited again, until a relay has removed what it contributed before."""


class MemberRecord(NamedTuple):
    """One member of a federation as it is stored.

    id: unique in the store, part of the token. number: 0, 1, ... within the federation. round: of its last upload.
    revoked: 0, 1, or `REINVITED`. away: it missed a deadline, and moving means do not wait for it until it has uploaded
    so many times. expires, seen: when its token expires and when the member was seen last, in seconds since 1970; 0 is
    never. misses: deadlines that it has missed. old_token_hash, old_expires: the token that was replaced last, and
    until when it is accepted beside the new one; 0 is not at all.
    """

    id: int
    federation: int
    number: int
    name: str
    token_hash: TokenHash
    revoked: int
    away: int
    round: int
    uploads: int
    bytes: int
    expires: int = 0
    seen: int = 0
    misses: int = 0
    old_token_hash: TokenHash = b""
    old_expires: int = 0

    def state(self, now: float) -> str:
        """One of `STATES`."""
        if self.revoked == 1:
            return "revoked"
        if 0 < self.expires <= now:
            return "expired"
        return "away" if self.away else "invited" if self.round < 0 else "active"


class MemberTable(Table):
    """The members of every federation."""

    name = "members"

    def get(self, member: int) -> MemberRecord | None:
        """One member by its id."""
        row = self.find(member)
        return MemberRecord(*row) if row else None

    def of(self, federation: int) -> list[MemberRecord]:
        """The members of a federation, by number."""
        return [MemberRecord(*row) for row in self.select("federation = ?", (federation,), order="number")]

    def add(self, federation: int, name: str) -> int:
        """The id of a new member; `set_token` must follow."""
        (number,) = self.sql.execute(
            "SELECT coalesce(max(number) + 1, 0) FROM members WHERE federation = ?", (federation,)
        ).fetchone()
        record = MemberRecord(
            self._next_id(), federation, number, name, b"", revoked=0, away=0, round=-1, uploads=0, bytes=0
        )
        self.write(record, new=True)
        return record.id

    def _change(self, member: int, **changes: Any) -> MemberRecord:
        record = self.get(member)
        assert record is not None
        changed = record._replace(**changes)
        self.update_row(record, changed)
        return changed

    def set_token(
        self, member: int, token_hash: bytes, expires: int = 0, *, old_hash: bytes = b"", old_expires: int = 0
    ) -> None:
        """Save the hash of a member's token, and of the one that it replaces."""
        self._change(member, token_hash=token_hash, expires=expires, old_token_hash=old_hash, old_expires=old_expires)

    def revoke(self, member: int) -> None:
        """Mark a member as revoked."""
        self._change(member, revoked=1)

    def reinvite(self, member: int) -> None:
        """Accept a revoked member again; what it contributed before is removed by the relay, as of any revoked one."""
        self._change(member, revoked=REINVITED, away=0)

    def settle_reinvited(self, federation: int) -> None:
        """Members that were invited again are like any other from now on: their contributions have been removed."""
        for row in list(self.select("federation = ? AND revoked = ?", (federation, REINVITED))):
            record = MemberRecord(*row)
            self.update_row(record, record._replace(revoked=0))

    def set_seen(self, times: Mapping[int, int]) -> None:
        """Save when members were seen last, in seconds since 1970."""
        for member, seen in times.items():
            record = self.get(member)
            # An upload since then has saved a later time; one that is much later is of a clock that was set back.
            if record is not None and (record.seen < seen or record.seen > seen + _CLOCK_SET_BACK):
                self.update_row(record, record._replace(seen=seen))

    def count_upload(self, member: MemberRecord, round_: int, size: int, *, came_back: bool = False) -> MemberRecord:
        """Count an accepted upload; its round is the newest of the member.

        member: as it is stored now. came_back: it was away, and has uploaded to a moving mean.
        """
        away, seen = member.away - came_back, int(time.time())
        uploads, size = member.uploads + 1, member.bytes + size
        counted = member._replace(round=round_, uploads=uploads, bytes=size, seen=seen, away=away)
        self.update_row(member, counted)
        return counted

    def miss_deadline(self, federation: int, numbers: Collection[int]) -> None:
        """Members have missed a deadline: twice as many uploads as the last time until moving means wait for them."""
        for record in self.of(federation):
            if record.number in numbers:
                away = 2 ** min(record.misses, _LONGEST_AWAY)
                self.update_row(record, record._replace(away=away, misses=record.misses + 1))

    def count_expected(self, federation: int) -> int:
        """How many members moving means wait for: neither revoked nor away."""
        (count,) = self.sql.execute(
            "SELECT count(*) FROM members WHERE federation = ? AND NOT revoked AND NOT away", (federation,)
        ).fetchone()
        return int(count)

    def count_away(self, federation: int, channel: str) -> int:
        """How many contributions to a channel are of members that nobody waits for."""
        (count,) = self.sql.execute(
            "SELECT count(*) FROM contributions c JOIN members m ON m.federation = c.federation "
            "AND m.number = c.number WHERE c.federation = ? AND c.channel = ? AND m.away > 0",
            (federation, channel),
        ).fetchone()
        return int(count)

    def revoked_with_contributions(self, federation: int) -> list[int]:
        """Numbers of members, revoked or invited again since, that still have a contribution from before."""
        rows = self.sql.execute(
            "SELECT DISTINCT m.number FROM members m JOIN contributions c ON c.federation = m.federation "
            "AND c.number = m.number WHERE m.federation = ? AND m.revoked ORDER BY m.number",
            (federation,),
        )
        return [number for (number,) in rows]

    def totals(self, federation: int) -> dict[str, Any]:
        """Uploads and bytes accepted so far."""
        uploads, size = self.sql.execute(
            "SELECT coalesce(sum(uploads), 0), coalesce(sum(bytes), 0) FROM members WHERE federation = ?", (federation,)
        ).fetchone()
        return {"uploads": uploads, "bytes": size}
