"""Keeps the status of a relay while operators watch it, and tells each of them what has changed.

One task serves all operators: it builds the status in a thread, at most twice per second, and only while somebody
watches. Without operators it only notes the round of each federation, so that speeds are known when one comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from consilience.relay.recent_activity import RecentActivity
from consilience.relay.rejections import Rejection, damaged_record
from consilience.relay.status_builder import LiveCounts, StatusBuilder
from consilience.relay.writer import Writer

_COALESCE = 0.5  # seconds during which changes are sent as one event
_TICK = 5.0  # seconds until the status is built without a reason: rounds, sizes, who was seen
_BEHIND = 50  # events that wait for an operator before its stream ends; it gets all of the status when it is back
log = logging.getLogger("consilience.relay")
Event = tuple[str, str]
"""The kind of an event - status, update or end - and its data as JSON."""


class Watcher:
    """One operator's event stream: the events that it has not been sent yet."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.behind = False

    def add(self, kind: str, data: str) -> None:
        """Add an event; a stream that is too far behind gets no more."""
        self.behind = self.behind or self.events.qsize() >= _BEHIND
        if not self.behind:
            self.events.put_nowait((kind, data))

    def end(self, why: Rejection) -> None:
        """Add the last event."""
        self.add("end", json.dumps(why.content()))


class StatusFeed:
    """The status, and the operators that watch it. All methods are called on the event loop."""

    def __init__(self, activity: RecentActivity, path: Path, writer: Writer) -> None:
        self.activity, self.writer = activity, writer
        self._builder = StatusBuilder(path, writer)
        self._watchers: set[Watcher] = set()
        self._new: set[Watcher] = set()
        """Watchers that have not been sent all of the status yet."""
        self._asked = asyncio.Event()
        self._stopping: Rejection | None = None
        self._thread = ThreadPoolExecutor(1, "status")
        self._task = asyncio.create_task(self._run())

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watcher]:
        """A watcher whose first event is all of the status."""
        watcher = Watcher()
        if self._stopping:
            watcher.end(self._stopping)
        self._new.add(watcher)
        self._asked.set()
        self.activity.changed.set()
        try:
            yield watcher
        finally:
            self._new.discard(watcher)
            self._watchers.discard(watcher)

    def end(self, why: Rejection) -> None:
        """Send everybody who watches a last event, and whoever comes after it."""
        self._stopping = why
        for watcher in self._watchers | self._new:
            watcher.end(why)

    async def stop(self) -> None:
        """End the task and its thread, and close the store."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await asyncio.to_thread(self._thread.shutdown)
        self._builder.close()

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._asked.clear()
            self.activity.changed.clear()
            self._note_rounds()
            try:
                if self._watchers or self._new:
                    await self._update()
            except Exception as error:  # such as a damaged page: the next update may succeed
                log.warning("the status cannot be built: %s", error)
                self.writer.request_repair()
                for watcher in self._new:
                    watcher.end(damaged_record())
            if not await _wait(self._asked, _COALESCE):
                await _wait(self.activity.changed, _TICK - _COALESCE)

    def _note_rounds(self) -> None:
        for federation, service in list(self.writer.federations.items()):
            self.activity.pace(federation).note_round(service.snapshot.round)

    async def _update(self) -> None:
        """Build the status again, and send what has changed to those who watch, and all of it to new ones."""
        run, now = asyncio.get_running_loop().run_in_executor, int(self.activity.clock())
        delta = await run(self._thread, self._builder.update, self._counts())
        if delta and self._watchers:
            update = json.dumps({"time": now, **delta})
            for watcher in self._watchers:
                watcher.add("update", update)
        new = set(self._new)
        if new:
            status = await run(self._thread, _dump, now, self._builder.full)
            for watcher in new & self._new:  # some may have left meanwhile
                watcher.add("status", status)
                self._new.discard(watcher)
                self._watchers.add(watcher)

    def _counts(self) -> LiveCounts:
        """Copies of the counters, for the thread."""
        activity, now, federations = self.activity, self.activity.clock(), list(self.writer.federations)
        return LiveCounts(
            uploaded=activity.take_uploaded(),
            seen=activity.take_seen(),
            paces={id_: activity.pace(id_, now).describe(now, activity.started) for id_ in federations},
            refused=dict(activity.refused),
            refusals=activity.last_refusals(),
            started=activity.started,
        )


def _dump(now: int, full: Any) -> str:
    return json.dumps({"time": now, **full()})


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within this time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
