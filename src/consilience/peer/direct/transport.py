"""How bytes travel between members: one small interface, which zenoh and iroh implement.

A transport knows nothing of messages: it carries requests and replies. What they say is checked above it, by the
members' signatures, whatever the transport knows of who is at the other end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

AnswerRequest = Callable[[bytes], bytes]
"""Answers a request of another member; never raises."""


class Transport(Protocol):
    """Carries requests to other members, and their replies back."""

    def present(self) -> set[str]:
        """Names of the other members that are connected now, as they call themselves."""

    def ask(self, request: bytes, seconds: float, member: str | None = None) -> dict[str, bytes]:
        """Send a request to one member, or to all that are connected; the replies that came in time, by member."""

    def close(self) -> None:
        """Close all connections."""
