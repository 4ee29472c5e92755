"""The open event streams: woken by changes, and ended at once when their member is revoked or the relay stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consilience.relay.rejections import Rejection
from consilience.relay.tables import MemberRecord

BEFORE_SHUTDOWN = "before_shutdown"
"""In the state of an application's lifespan: what its server calls before it waits for answers under way."""
_PER_MEMBER = 4


class OpenStream:
    """One event stream of a member."""

    def __init__(self, member: MemberRecord, authorization: str) -> None:
        self.member, self.authorization = member, authorization
        self.ended = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There is something to send, or the stream has ended."""
        self._woken.set()

    def end(self) -> None:
        """Send nothing more."""
        self.ended = True
        self.wake()

    async def wait(self, seconds: float) -> bool:
        """Whether it was woken within this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class Streams:
    """All open streams. Called from the event loop only."""

    def __init__(self) -> None:
        self._open: dict[int, list[OpenStream]] = {}  # by member
        self.stopping = False

    def open(self, member: MemberRecord, authorization: str) -> OpenStream:
        """A new stream of a member; refuses it if the member has too many."""
        mine = self._open.get(member.id, [])
        if len(mine) >= _PER_MEMBER:
            raise Rejection(
                "over-quota",
                f"{len(mine)} event streams of yours are open; at most {_PER_MEMBER} at once are allowed",
                retry_after=10,
            )
        stream = OpenStream(member, authorization)
        stream.ended = self.stopping
        self._open.setdefault(member.id, []).append(stream)
        return stream

    def close(self, stream: OpenStream) -> None:
        """A stream's connection has ended."""
        mine = self._open.get(stream.member.id, [])
        if stream in mine:
            mine.remove(stream)
        if not mine:
            self._open.pop(stream.member.id, None)

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._all())

    def wake(self, federation: int) -> None:
        """A federation has changed."""
        for stream in self._all():
            if stream.member.federation == federation:
                stream.wake()

    def end(self, has_ended: Callable[[OpenStream], bool]) -> None:
        """End the streams of which this is true."""
        for stream in self._all():
            if has_ended(stream):
                stream.end()

    def end_all(self) -> None:
        """The relay stops: end all streams, and those that are opened from now on."""
        self.stopping = True
        for stream in self._all():
            stream.end()

    def _all(self) -> list[OpenStream]:
        return [stream for mine in self._open.values() for stream in mine]
