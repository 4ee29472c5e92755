"""Everything the relay uses of uvicorn that its documentation does not promise, in one file.

uvicorn waits without limit for the rest of a head or a body, and for a client that does not read its answer. Its
`http=` option takes a protocol class, and `with_limits` gives it one: uvicorn's own httptools protocol with one timer
per connection. The timer computes what is due; a request costs only a few assignments. All times are of the event
loop's clock, which never goes back. It also limits how many connections one address has.

The attributes used are those of `uvicorn>=0.48,<0.55` (pyproject.toml). `tests/relay/test_uvicorn_hooks.py` checks each
and names the library and its version if one is missing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import traceback
from collections.abc import Collection
from enum import Enum, auto
from typing import Any, ClassVar

import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from consilience.relay.addresses import UNKNOWN, shared_address
from consilience.relay.connection_places import ConnectionPlaces
from consilience.relay.direct_routes import ANSWERS_PATH
from consilience.relay.known_answers import KNOWN_ANSWER
from consilience.relay.member_connections import EXTENSION
from consilience.relay.streams import BEFORE_SHUTDOWN
from consilience.relay.timeouts import HEAD_LIMIT, Timeouts

__all__ = ["abort_connections", "announce_shutdown", "hide_client_data", "with_limits"]

_APPLICATION_ERROR = "Exception in ASGI application"
"""How uvicorn's log message about an exception of the application starts."""
_ANSWERS = ANSWERS_PATH.encode() + b"?"
_UNUSUAL = {b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"if-none-match"}
"""Headers of requests that are never answered at once."""
_Refusal = tuple[int, str, str] | tuple[int, str, str, bytes]
"""The arguments of `_TimedConnection._refuse`."""
_HEAD_TOO_LARGE: _Refusal = 431, "head-too-large", f"the head of a request may have at most {HEAD_LIMIT} bytes"
log = logging.getLogger("consilience.relay")


def with_limits(
    timeouts: Timeouts, address_connections: int = 0, proxies: Collection[str] = ()
) -> type[asyncio.Protocol]:
    """A protocol class for `uvicorn.Config(http=...)` that ends connections as `timeouts` says.

    address_connections: the most that one address may have; 0 is no limit. proxies: addresses without this limit.
    """

    class TimedConnection(_TimedConnection):
        limits = timeouts
        places = ConnectionPlaces(address_connections, proxies)

    return TimedConnection


def abort_connections(server: uvicorn.Server) -> None:
    """Close every connection of a server at once, sent or not."""
    for connection in list(server.server_state.connections):
        connection.transport.abort()


def announce_shutdown(server: uvicorn.Server) -> None:
    """Call what the application has left in the state of its lifespan, before answers under way are waited for."""
    server.lifespan.state.get(BEFORE_SHUTDOWN, lambda: None)()


def hide_client_data(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: errors keep their type and place, not their message, which may quote a client."""
    if not record.exc_info or not str(record.msg).startswith(_APPLICATION_ERROR):
        return "asyncio.exceptions.CancelledError" not in str(record.msg)  # stopped by a second signal: no error
    kind, _, where = record.exc_info
    if kind is None or issubclass(kind, ClientDisconnect | asyncio.CancelledError):
        return False  # a client disconnected, or an event stream was open at shutdown
    record.msg = f"the application failed with {kind.__name__}\n{''.join(traceback.format_tb(where))}"
    record.args, record.exc_info, record.exc_text = (), None, None
    return True


class _RequestState(Enum):
    """How much of a connection's newest request has been received."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()
    COMPLETE = auto()
    ANSWERED = auto()
    """All but its end, and it is answered already."""


class _TimedFlowControl(FlowControl):
    """Knows since when the client may send: a client that the relay keeps waiting is not slow."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self._loop = loop
        self.awaits_continue = False
        """Whether the client waits to be asked for its body (Expect: 100-continue)."""
        self.resumed_at = 0.0

    @property
    def blocked(self) -> bool:
        """Whether the relay keeps the client from sending."""
        return self.read_paused or self.awaits_continue

    def resume_reading(self) -> None:
        """Called by uvicorn when the application reads on, and when it has answered."""
        if self.blocked:
            self.awaits_continue, self.resumed_at = False, self._loop.time()
        super().resume_reading()


class _RefusedHead(Exception):
    """Raised inside the parser to stop it."""


class _TimedConnection(HttpToolsProtocol):
    """One client's connection. Deadlines are computed when the timer fires, not when bytes arrive."""

    limits: ClassVar[Timeouts]
    places: ClassVar[ConnectionPlaces]
    flow: _TimedFlowControl

    # Called by uvicorn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected; if there are too many connections, an idle one is closed."""
        super().connection_made(transport)
        self.flow = _TimedFlowControl(transport, self.loop)
        self._state = _RequestState.NOTHING
        self._state_since = self._received_at = self._body_at = self._read_at = self.loop.time()
        self._discard_until = math.inf  # when the rest of a body that was answered already must have come
        self._body_size = self._bytes_without_progress = self._unsent = 0
        # With TLS, `transport` encrypts for a second one that has the socket. Nothing is added to its buffer unless it
        # is empty, so a buffer size that changed means that the client has read.
        self._socket_transport: asyncio.Transport = getattr(
            getattr(transport, "_ssl_protocol", None), "_transport", transport
        )
        self._socket_transport.set_write_buffer_limits(high=0)
        if transport is not self._socket_transport:
            transport.set_write_buffer_limits(high=1)  # of 0 bytes, asyncio's TLS transport would never send any
        self._timer = self.loop.call_later(self.limits.shortest, self._check_deadlines)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.places.close_one_idle()
        too_many = self.places.take(self, shared_address(self.client[0]) if self.client else UNKNOWN)
        # Why the head of the next request is refused: status, code, message and headers.
        self._refusal: _Refusal | None = None
        if too_many:
            self._refusal = 429, "too-many-connections", too_many, b"retry-after: 5"

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended: cancel its timers."""
        self._timer.cancel()
        self.places.free(self)
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived: those of heads, and between the pieces of a body, are limited."""
        if self.transport.is_closing():
            return
        self._received_at = self.loop.time()
        self._bytes_without_progress += len(data)
        super().data_received(data)
        if self._bytes_without_progress > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(*_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._state, self._state_since = _RequestState.HEAD, self._received_at

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. What comes after the body is a trailer, and never a header: uvicorn by itself would add it."""
        if self._state is _RequestState.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._bytes_without_progress = 0
        self._refusal = _wrong_head(self.url, self.headers) or self._refusal
        if self._refusal is not None:
            raise _RefusedHead
        if _answer_at_once(self):
            self._state, self._body_at = _RequestState.ANSWERED, self._received_at
            self.places.idle[self] = None
            return
        self._state, self._state_since, self._body_at = _RequestState.BODY, self._received_at, self._received_at
        self._discard_until, self._body_size = math.inf, 0
        self.flow.awaits_continue = self.expect_100_continue
        self.places.idle.pop(self, None)
        self.scope["extensions"] = {EXTENSION: {"connection": self}}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._bytes_without_progress = 0
        self._body_size += len(body)
        self._body_at = self._received_at
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._bytes_without_progress = 0
        if self._state is _RequestState.ANSWERED:
            self._state, self._state_since = _RequestState.NOTHING, self.loop.time()
            return
        self._state = _RequestState.COMPLETE
        super().on_message_complete()
        self._await_next_request()

    def on_response_complete(self) -> None:
        """The application has answered; the client may still be sending, or reading."""
        awaits_continue = self.flow.awaits_continue
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        self.places.idle[self] = None
        self._discard_until = self.loop.time() + self.limits.body
        if awaits_continue and self._state is _RequestState.BODY:
            self.transport.close()  # what comes now may be its body or its next request: they cannot be distinguished
        self._await_next_request()

    def resume_writing(self) -> None:
        """The client has read what was waiting; as much may wait again when the timer looks at it next."""
        self._unsent = -1
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's own timer between requests; closing here would cut off an answer that is still being read."""
        self._check_deadlines()

    def send_400_response(self, msg: str) -> None:
        """What was received is not HTTP, or its head is too large."""
        if _head_size(self.url, self.headers) > HEAD_LIMIT and self._state is _RequestState.HEAD:
            self._refusal = _HEAD_TOO_LARGE
        self._refuse(*(self._refusal or (400, "not-http", msg)))

    # Deadlines

    def _await_next_request(self) -> None:
        """If the last request is received and answered, wait for the next."""
        if self._state is _RequestState.COMPLETE and self.cycle.response_complete:
            self._state, self._state_since = _RequestState.NOTHING, self.loop.time()

    def _check_deadlines(self) -> None:
        """End the connection if a deadline has passed, and set the timer for the next check."""
        self._timer.cancel()
        now = self.loop.time()
        due = min(self._deadline_to_read(now), self._deadline_to_send())
        if due <= now:
            self._time_out()
            due = math.inf
        self._timer = self.loop.call_at(min(due, now + self.limits.shortest), self._check_deadlines)

    def _deadline_to_read(self, now: float) -> float:
        """When the client must have read something."""
        unsent = self._socket_transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._read_at = unsent, now
        if unsent:
            return self._read_at + self.limits.answer
        return now if self.transport.is_closing() else math.inf

    def _deadline_to_send(self) -> float:
        """When the client must have sent something, or all of it."""
        if self.flow.blocked or self.transport.is_closing():
            return math.inf
        limits, since = self.limits, max(self._state_since, self.flow.resumed_at)
        if self._state is _RequestState.HEAD:
            return since + limits.head
        if self._state is _RequestState.BODY:
            pause = max(self._body_at, self.flow.resumed_at) + limits.idle
            return min(pause, since + limits.body + self._body_size / limits.rate, self._discard_until)
        if self._state is _RequestState.NOTHING and not self._unsent:
            asked = self._body_at != self._state_since  # both are set with the connection, and apart with a request
            return max(since, self._read_at) + limits.idle if asked else limits.head + since
        return math.inf

    # Ending a connection

    def _time_out(self) -> None:
        if self._unsent or self.transport.is_closing():
            self._abort()
        elif self._state is _RequestState.NOTHING:
            self.transport.close()
        else:
            what = "head" if self._state is _RequestState.HEAD else "body"
            self._refuse(408, "too-slow", f"the {what} of the request came too slowly; send it again, faster")

    def close_if_idle(self) -> bool:
        """Close it if no request is under way and the client has read all it was sent; whether it was closed."""
        if self not in self.places.idle or self._socket_transport.get_write_buffer_size():
            return False
        self._abort()
        return True

    def _refuse(self, status: int, code: str, message: str, *headers: bytes) -> None:
        """Answer with the reason, unless another answer has started, and close."""
        cycle = self.cycle
        answered = cycle is None or cycle.response_complete
        if self._state is _RequestState.BODY and answered:
            self.transport.close()
            return
        if self.pipeline or not (answered or (self._state is _RequestState.BODY and not cycle.response_started)):
            self._abort()
            return
        content = json.dumps({"code": code, "message": message}).encode()
        lines = [name + b": " + value for name, value in self.server_state.default_headers]
        lines += [
            b"content-type: application/json",
            b"content-length: %d" % len(content),
            b"connection: close",
            *headers,
        ]
        self.transport.write(STATUS_LINE[status] + b"\r\n".join([*lines, b"", content]))
        if not answered:
            cycle.disconnected = True  # uvicorn discards the application's own answer
            cycle.message_event.set()
        self.transport.close()

    def _abort(self) -> None:
        """Close at once; what is unsent is lost."""
        self.connections.discard(self)  # its place is free now
        self.places.free(self)
        self._socket_transport.abort()


def _answer_at_once(connection: _TimedConnection) -> bool:
    """Send an answer that the application knows, without a task for the request; whether there is one.

    That takes about three quarters of the processor time. Whatever is unusual about a request or its connection goes
    the usual way.
    """
    known_answer = connection.app_state.get(KNOWN_ANSWER)
    if known_answer is None or not connection.url.startswith(_ANSWERS) or not _may_answer_at_once(connection):
        return False
    query, extensions = connection.url.removeprefix(_ANSWERS), {EXTENSION: {"connection": connection}}
    scope: dict[str, Any] = connection.scope  # type: ignore[assignment]
    scope |= {"method": "GET", "path": ANSWERS_PATH, "query_string": query, "extensions": extensions}
    answer = known_answer(scope)
    if answer is None:
        return False
    lines = [b"%b: %b\r\n" % header for header in (*connection.server_state.default_headers, *answer.headers)]
    connection.transport.write(b"".join([STATUS_LINE[200], *lines, b"\r\n", answer.body]))
    connection.server_state.total_requests += 1
    return True


def _may_answer_at_once(connection: _TimedConnection) -> bool:
    """Whether the request is a plain GET without a body, and nothing else is under way on the connection."""
    parser = connection.parser
    return (
        parser.get_method() == b"GET"
        and parser.get_http_version() == "1.1"
        and parser.should_keep_alive()
        and not parser.should_upgrade()
        and _UNUSUAL.isdisjoint([name for name, _ in connection.headers])
        and (connection.cycle is None or connection.cycle.response_complete)
        and connection._body_at != connection._received_at  # the first of those that came at once: others want a turn
        and not connection.transport.is_closing()
        and not connection._socket_transport.get_write_buffer_size()
        and (connection.limit_concurrency is None or len(connection.connections) < connection.limit_concurrency)
    )


def _head_size(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def _wrong_head(url: bytes, headers: list[tuple[bytes, bytes]]) -> _Refusal | None:
    """Why a complete head is refused."""
    if _head_size(url, headers) > HEAD_LIMIT:
        return _HEAD_TOO_LARGE
    hosts = sum(name == b"host" for name, _ in headers)
    return None if hosts == 1 else (400, "not-http", f"{hosts} Host headers were sent; send exactly one")
