"""What a relay has answered since its start: who was seen, uploads and rounds by minute, and what was refused.

It is counted for operators only, with a few updates of dictionaries per request, and all of it on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MINUTES = 60
"""How many minutes of uploads are remembered."""
_RECENT = 5  # minutes over which uploads per minute are averaged
_REFUSALS = 30  # members and codes whose last refused request is remembered
_LONGEST = 300  # characters of a message that are remembered


class Refusal(NamedTuple):
    """Refused requests of one member with one code: how many, and the last of them.

    federation, member: ids; 0 if no valid token came with it.
    """

    time: float
    code: str
    message: str
    request: str
    federation: int
    member: int
    times: int


@dataclass
class Pace:
    """Uploads of one federation, and by how much its round advanced, in each of the last minutes; newest last."""

    minute: int
    uploads: deque[int] = field(default_factory=lambda: deque([0], MINUTES))
    rounds: deque[int] = field(default_factory=lambda: deque([0], MINUTES))
    round: int | None = None

    def advance(self, minute: int) -> None:
        """Begin the minutes that have passed."""
        passed = min(minute - self.minute, MINUTES)
        if passed > 0:
            self.uploads.extend([0] * passed)
            self.rounds.extend([0] * passed)
            self.minute = minute

    def note_round(self, round_: int) -> None:
        """Count the rounds since the last call."""
        if self.round is not None:
            self.rounds[-1] += max(round_ - self.round, 0)
        self.round = round_

    def describe(self, now: float, since: float) -> dict[str, Any]:
        """Uploads by minute, and both speeds; `since`: when counting began."""
        counted, this_minute = max(now - since, 0.0), now % 60
        recent = max(min(counted, 60.0 * (_RECENT - 1) + this_minute), 10.0)
        hour = max(min(counted, 60.0 * (MINUTES - 1) + this_minute), 60.0)
        return {
            "uploads_per_minute": round(60 * sum(list(self.uploads)[-_RECENT:]) / recent, 1),
            "rounds_per_hour": round(3600 * sum(self.rounds) / hour, 1),
            "minutes": list(self.uploads),
        }


class RecentActivity:
    """Counters since the start. clock: seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock, self.started = clock, clock()
        self.refused: Counter[str] = Counter()
        self._refusals: dict[tuple[str, int], Refusal] = {}  # by code and member, the newest last
        self.seen: dict[int, int] = {}
        """When each member was answered last, by id; only members with a valid token."""
        self.changed = asyncio.Event()
        """Set when something was uploaded or refused."""
        self._uploaded: set[int] = set()
        self._seen_again: set[int] = set()
        self._paces: dict[int, Pace] = {}

    def answer(self, federation: int, member: int, *, uploaded: bool) -> None:
        """Count a request of a member that was not refused; `uploaded`: it was a new upload."""
        now = self.clock()
        self.seen[member] = int(now)
        self._seen_again.add(member)
        if uploaded:
            self._uploaded.add(member)
            self.pace(federation, now).uploads[-1] += 1
            self.changed.set()

    def refuse(self, code: str, message: str, request: str, federation: int = 0, member: int = 0) -> None:
        """Count a refused request."""
        self.refused[code] += 1
        before = self._refusals.pop((code, member), None)
        times = before.times + 1 if before else 1
        last = Refusal(self.clock(), code, message[:_LONGEST], request[:_LONGEST], federation, member, times)
        self._refusals[code, member] = last
        if len(self._refusals) > _REFUSALS:
            self._refusals.pop(next(iter(self._refusals)))
        self.changed.set()

    def pace(self, federation: int, now: float | None = None) -> Pace:
        """The pace of a federation, in the minute that it is now."""
        minute = int((self.clock() if now is None else now) // 60)
        pace = self._paces.setdefault(federation, Pace(minute))
        pace.advance(minute)
        return pace

    def last_refusals(self) -> list[Refusal]:
        """What was refused last, the newest first: one for each member and code."""
        return list(reversed(self._refusals.values()))

    def take_uploaded(self) -> set[int]:
        """The members that have uploaded since the last call."""
        taken, self._uploaded = self._uploaded, set()
        return taken

    def take_seen(self) -> dict[int, int]:
        """The members that were seen since the last call, and when."""
        taken, self._seen_again = self._seen_again, set()
        return {member: self.seen[member] for member in taken}
