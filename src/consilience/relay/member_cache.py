"""Members as they are stored, read again only when the store has changed."""

from __future__ import annotations

from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord

_REMEMBERED = 10_000  # members


class MemberCache:
    """Members by id. A revoked token is refused at once: before a known member is used, SQLite is asked whether another
    connection has written since it was read.
    """

    def __init__(self, store: Store) -> None:
        self.store = store  # only reads: what it wrote itself would not be noticed
        self._version = -1
        self._members: dict[int, MemberRecord | None] = {}

    def get(self, member: int) -> MemberRecord | None:
        """One member by its id."""
        if member in self._members:
            version = self.store.data_version
            if version == self._version:
                return self._members[member]
            self._members.clear()
            self._version = version
        if len(self._members) >= _REMEMBERED:
            self._members.clear()
        # It may be newer than the version that the others are of: it is read again too once that has changed.
        self._members[member] = found = self.store.members.get(member)
        return found
