"""Which open connections belong to which member."""

from __future__ import annotations

from consilience.relay.connection_places import Connection
from consilience.relay.rejections import Rejection

EXTENSION = "consilience.connection"
"""Which of a request's `extensions` has its `connection`, if the relay's own server received it."""


class MemberConnections:
    """The open connections of each member: those whose last request had the member's token. A most of 0 is no limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of: dict[int, dict[Connection, None]] = {}  # by member, the oldest first
        self._member: dict[Connection, int] = {}

    def claim(self, connection: Connection | None, member: int) -> None:
        """A request of a member came over this connection; refuses it if all that the member may have are in use."""
        if connection is None or self._member.get(connection) == member:
            return
        self.forget(connection)
        mine = self._of.get(member, {})
        if self.most and len(mine) >= self.most:
            self._close_one(mine)
        self._of.setdefault(member, {})[connection] = None
        self._member[connection] = member
        connection.places.on_end(connection, self.forget)

    def _close_one(self, mine: dict[Connection, None]) -> None:
        idle = next((other for other in mine if other.close_if_idle()), None)
        if idle is None:
            raise Rejection(
                "too-many-connections",
                f"{len(mine)} connections of yours are in use; at most {self.most} are allowed. Wait for their "
                f"answers, and use fewer",
                retry_after=5,
            )
        self.forget(idle)

    def forget(self, connection: Connection) -> None:
        """A connection has been closed, or is another member's now."""
        member = self._member.pop(connection, None)
        if member is not None:
            self._of[member].pop(connection)
            if not self._of[member]:
                del self._of[member]
