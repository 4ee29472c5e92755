"""Waiting for what other members upload, where the roles of a round act one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from consilience.peer.connection import FederationConnection

log = logging.getLogger("consilience.peer")
_POLL = 5.0  # seconds after which the relay is asked again although it has reported nothing


class OtherMembers:
    """What this member has seen of the others' uploads: a step of a round waits until all of them have a newer one.

    A member that did not come in time is not waited for again until it has uploaded.
    """

    def __init__(self, connection: FederationConnection, stopped: Callable[[], bool]) -> None:
        self._connection, self._stopped = connection, stopped
        self._rounds: dict[int, int] = {}  # of each member, the round of its upload that was seen last
        self._late: set[int] = set()
        self.late_means: set[str] = set()
        """Moving means that did not move in time."""

    def wait(self, names: Collection[str], round_: int, seconds: float) -> None:
        """Wait until the others have uploaded to these channels in this round; names: of those I do not upload to.

        round_: mine, to compare with where I have not seen any upload of the others.
        """
        connection, end = self._connection, time.monotonic() + seconds
        seen: Mapping[str, Any] | None = None
        missing, still = list[int](), list[str]()
        while connection.backoff.allows(end) and not self._stopped():
            status = connection.inbox.status(end, connection.timeout)
            if status is not None:
                seen = status
                missing, still = self._missing(status, names, round_), self._unmoved(status, names)
                if not missing and not still:
                    self._note(status, names)
                    return
            connection.inbox.wait(min(end - time.monotonic(), _POLL))
        if seen is not None and not self._stopped():  # else the relay was out of reach, and nobody is late
            self._note(seen, names)
            self._give_up(missing, still, seconds)

    def _uploaders(self, status: Mapping[str, Any], names: Collection[str]) -> dict[int, int]:
        """The members that upload to channels which are no moving means, and the newest round of each."""
        roles, channels = self._connection.charter.roles, self._connection.channels
        assert roles is not None
        standing = {name for name in names if not channels[name].moves}
        known, mine = _rounds(status.get("rounds")), self._connection.number
        return {n: r for n, r in known.items() if n != mine and standing & roles.uploads_of(n)}

    def _missing(self, status: Mapping[str, Any], names: Collection[str], round_: int) -> list[int]:
        """The members whose upload is awaited."""
        before = 0 if self._rounds else round_ - 1  # of one that was not seen yet
        uploaders = self._uploaders(status, names)
        missing = [number for number, newest in uploaders.items() if newest <= self._rounds.get(number, before)]
        self._late &= set(missing)
        return [number for number in missing if number not in self._late]

    def _unmoved(self, status: Mapping[str, Any], names: Collection[str]) -> list[str]:
        """The moving means that are awaited."""
        held, channels = self._connection.state.answers, self._connection.channels
        versions = {name: status["versions"].get(name, -1) for name in names if channels[name].moves}
        unmoved = {name for name, version in versions.items() if name in held and version <= held[name].version}
        self.late_means -= versions.keys() - unmoved
        return sorted(unmoved - self.late_means)

    def _note(self, status: Mapping[str, Any], names: Collection[str]) -> None:
        self._rounds |= self._uploaders(status, names)

    def _give_up(self, missing: list[int], still: list[str], seconds: float) -> None:
        """Continue without those who did not come."""
        self._late |= set(missing)
        self.late_means |= set(still)
        who = ", ".join([*(f"member {number}" for number in missing), *still])
        log.warning("nothing new from %s within %g s; continuing with what there is", who, seconds)


def _rounds(listed: object) -> dict[int, int]:
    """The newest round of each member by number, as the relay says it; what has another form counts for nothing."""
    pairs = listed.items() if isinstance(listed, dict) else ()
    return {int(n): r for n, r in pairs if isinstance(n, str) and n.isascii() and n.isdigit() and isinstance(r, int)}
