"""What a member needs of whoever is at the other end: a relay over HTTP, or the other members themselves.

Everything above a link is the same code for both: what is uploaded, saved, downloaded and held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from consilience.wire.headers import Part, Parts


@dataclass(frozen=True)
class AnswersMessage:
    """Answers of channels as a link gives them: what the body contains, the body, and its ETag."""

    parts: dict[str, Part]
    body: bytes
    etag: str


class Link(Protocol):
    """One member's requests. Each is given the seconds it may take, and ends by then."""

    url: str
    epoch: int
    bytes_sent: int
    bytes_received: int
    largest_answer: int

    def federation(self, seconds: float) -> dict[str, Any]:
        """This member's newest round, and the state of the channels."""

    def upload(self, round_: int, parts: Parts, body: bytes, seconds: float) -> dict[str, Any]:
        """Upload a body; returns its receipt."""

    def answers(
        self,
        round_: int,
        channels: Sequence[str],
        have: Mapping[str, int],
        draw: Mapping[str, int],
        etag: str,
        seconds: float,
        partners: Sequence[int] = (),
    ) -> AnswersMessage | None:
        """Answers of some channels; None where they are those of `etag`.

        have: the version held of each moving mean. draw: how many entries of each pool. partners: members by number,
        whose uploads alone are wanted beside one's own; none: everybody's.
        """

    def reply(self, channel: str, version: int, seconds: float) -> bytes:
        """By how much the common values of a moving mean moved to become this version."""

    def wait_for_change(self, revision: int, seconds: float) -> int:
        """Wait until there is another revision than this one, or until the time is over; the newest revision."""

    def close(self) -> None:
        """Close all connections."""
