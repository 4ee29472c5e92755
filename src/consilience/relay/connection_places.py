"""The open connections of a server: how many each address has, which of them are idle, and to whom they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol


class Connection(Protocol):
    """What a connection can do for its place."""

    @property
    def places(self) -> ConnectionPlaces:
        """Where it is counted."""

    def close_if_idle(self) -> bool:
        """Close it if no request is under way and nothing waits to be read; whether it was closed."""


class ConnectionPlaces:
    """One for each server. most: connections that one address may have, 0 is no limit; without_limit: addresses."""

    def __init__(self, most: int = 0, without_limit: Collection[str] = ()) -> None:
        self.most, self.without_limit = most, without_limit
        self.idle: dict[Connection, None] = {}
        """Connections without a request under way, the longest idle first: they are closed when there are too many."""
        self._addresses: dict[Connection, str] = {}
        self._counts: Counter[str] = Counter()
        self._on_end: dict[Connection, Callable[[Connection], None]] = {}

    def take(self, connection: Connection, address: str) -> str:
        """Count a connection; if its address has too many and none of them is idle, the reason to refuse it."""
        limited = self.most and address not in self.without_limit
        refused = limited and self._counts[address] >= self.most and not self.close_one_idle(address)
        self._addresses[connection] = address
        self._counts[address] += 1
        self.idle[connection] = None
        if not refused:
            return ""
        return (
            f"{self._counts[address]} connections of your address are open; at most {self.most} are allowed. Use fewer"
        )

    def free(self, connection: Connection) -> None:
        """A connection has ended, or is about to."""
        self.idle.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]
        call = self._on_end.pop(connection, None)
        if call is not None:
            call(connection)

    def on_end(self, connection: Connection, call: Callable[[Connection], None]) -> None:
        """Call this when the connection has ended, and nothing else."""
        self._on_end[connection] = call

    def close_one_idle(self, address: str | None = None) -> bool:
        """Close the connection, of this address, that has been idle the longest; False if there is none."""
        mine = (other for other in self.idle if address is None or self._addresses[other] == address)
        return any(other.close_if_idle() for other in list(mine))
