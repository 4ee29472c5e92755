"""Which process may write to a store: a record that every writer replaces when it starts and checks when it writes."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from consilience.errors import StorageError
from consilience.relay.table import Table


class TakenOver(StorageError):
    """Another relay writes to the store now, or its file was replaced: this one may not write any more."""


class LeaseRecord(NamedTuple):
    """The process that may write. holder: a random number of its own. time: when it started, UTC."""

    id: int
    holder: str
    time: str


class LeaseTable(Table):
    """Which process may write; one record, with id 1."""

    name = "leases"

    def take(self, holder: str) -> None:
        """Let a process write, and no other one from now on."""
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.write(LeaseRecord(1, holder, time))

    def holder(self) -> str | None:
        """Who may write; None where the record is damaged or gone."""
        row = next(self.select_raw("id = 1"), None)
        return LeaseRecord(*row[:-1]).holder if row is not None and self.is_sound(row) else None
