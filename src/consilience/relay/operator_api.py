"""What a relay answers to its operators: the page, the status once, and the status as it changes."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from consilience.relay.auth import check_operator
from consilience.relay.checksums import DamagedRecord
from consilience.relay.event_stream import EventStream, format_event
from consilience.relay.logs import event
from consilience.relay.operator_page import page_routes
from consilience.relay.rate_limit import RateLimit
from consilience.relay.recent_activity import RecentActivity
from consilience.relay.rejections import Rejection, damaged_record
from consilience.relay.request_parts import one_header
from consilience.relay.status_feed import Event, StatusFeed, Watcher
from consilience.relay.store import Store
from consilience.relay.tables import OperatorRecord
from consilience.relay.writer import Writer

log = logging.getLogger("consilience.relay")
_HEARTBEAT = 10.0  # seconds between comments on an event stream
_STREAMS = 8  # event streams per operator
_RATE, _BURST = 5.0, 30  # requests of one operator, per second and at once
_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
Endpoint = Callable[[Request, OperatorRecord], Awaitable[Response]]


class OperatorApi:
    """The endpoints for operators. `start` it with the relay's store and writer, and `stop` it before they close."""

    def __init__(self, path: Path, activity: RecentActivity) -> None:
        self.path, self.activity = path, activity
        self._rate_limit = RateLimit(_RATE, _BURST)
        self._streams: Counter[int] = Counter()
        self._store: Store
        self._feed: StatusFeed

    def routes(self) -> list[Route]:
        """The paths of the page and of the status."""
        return [
            *page_routes(),
            Route("/v1/operator/status", self.operators_only(self.status)),
            Route("/v1/operator/events", self.operators_only(self.events)),
        ]

    def start(self, store: Store, writer: Writer) -> None:
        """Begin to note rounds; within the event loop."""
        self._store, self._feed = store, StatusFeed(self.activity, self.path, writer)

    def end_streams(self) -> None:
        """End every event stream: the relay is about to stop."""
        self._feed.end(Rejection("stopping", "the relay is about to stop; it may be back in a moment", retry_after=5))

    async def stop(self) -> None:
        """End every event stream, and close what was opened."""
        self.end_streams()
        await self._feed.stop()

    # -- endpoints -----------------------------------------------------------------------------------------------------

    async def status(self, request: Request, operator: OperatorRecord) -> Response:
        """All of the status."""
        with self._feed.watch() as watcher:
            kind, data = await watcher.events.get()
        if kind == "end":
            content = json.loads(data)
            raise Rejection(content["code"], content["message"], retry_after=5)
        return Response(data, media_type="application/json", headers=_NO_STORE)

    async def events(self, request: Request, operator: OperatorRecord) -> Response:
        """Server-sent events: all of the status, then what changes."""
        if self._streams[operator.id] >= _STREAMS:
            raise Rejection("over-quota", f"at most {_STREAMS} event streams at once are allowed", retry_after=10)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        self._streams[operator.id] += 1
        authorization = request.headers["authorization"]
        stream = EventStream(self._events(authorization), lambda: self._streams.subtract([operator.id]))
        stream.headers["X-Accel-Buffering"] = "no"  # a proxy passes events on as they come
        return stream

    async def _events(self, authorization: str) -> AsyncIterator[str]:
        with self._feed.watch() as watcher:
            while not watcher.behind:
                event = await _next_event(watcher)
                try:
                    check_operator(self._store.operators, authorization)
                except Rejection as refused:
                    event = "end", json.dumps(refused.content())
                except DamagedRecord:
                    event = "end", json.dumps(damaged_record().content())
                yield format_event(*event) if event else ": still here\n\n"
                if event and event[0] == "end":
                    return

    def operators_only(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint for requests with an operator's valid token; the application answers rejections."""

        @functools.wraps(endpoint)
        async def checked(request: Request) -> Response:
            try:
                operator = check_operator(self._store.operators, one_header(request, "authorization"))
            except (DamagedRecord, sqlite3.DatabaseError) as error:
                log.warning("%s", error, extra=event("damage-found"))
                self._feed.writer.request_repair()
                raise damaged_record() from None
            self._rate_limit.count(operator.id)
            return await endpoint(request, operator)

        return checked


async def _next_event(watcher: Watcher) -> Event | None:
    """The next event; None if there is none for a while."""
    try:
        async with asyncio.timeout(_HEARTBEAT):
            return await watcher.events.get()
    except TimeoutError:
        return None
