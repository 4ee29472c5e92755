"""How long a relay waits for a client, and the connection that keeps to it.

uvicorn by itself waits for ever for the rest of a head or a body, and for a client that does not read. Here each
connection has one timer, which looks at how things stand no more often than the shortest limit; a request costs a few
assignments. All clocks are the event loop's own, which only runs forwards.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import ClassVar

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from consilience.errors import ConfigurationError

__all__ = ["HEAD_LIMIT", "Timeouts", "patient"]

HEAD_LIMIT = 16 * 1024
"""Bytes of a request before its body; of the lines after a body, too."""


@dataclass(frozen=True)
class Timeouts:
    """How long a client may take, in seconds, and how slow it may be; one that reads its answer may take for ever."""

    head: float = 10.0
    """To begin a request after connecting, and to finish its head after the first byte; with TLS, also to greet."""
    idle: float = 15.0
    """Between two pieces of a body, and between two requests."""
    body: float = 30.0
    """For a whole body, on top of what its size takes at `rate`; and to go on sending what was answered already."""
    rate: float = 1024.0
    """Bytes a second that a body must reach."""
    answer: float = 60.0
    """Without reading any of an answer that waits to be sent."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"patience {field.name} is {value!r}; it must be a finite number above 0")

    @property
    def shortest(self) -> float:
        """The shortest limit: who looks this often comes late for none."""
        return min(self.head, self.idle, self.body, self.answer)


def patient(patience: Timeouts) -> type[asyncio.Protocol]:
    """The HTTP protocol for uvicorn that waits as long as `patience` says."""

    class Patient(_Connection):
        limits = patience
        spare = {}  # noqa: RUF012

    return Patient


class _Stage(Enum):
    """How far the newest request of a connection has come in."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()
    WHOLE = auto()


class _Flow(FlowControl):
    """Knows since when the client has been free to send: nobody is slow who was asked to wait."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self._loop = loop
        self.unasked = False
        """Whether the client waits to be asked for the body (Expect: 100-continue)."""
        self.free = 0.0

    @property
    def held(self) -> bool:
        """Whether it is we who keep the client from sending."""
        return self.read_paused or self.unasked

    def resume_reading(self) -> None:
        """Called by uvicorn whenever the application wants more, and when it has answered."""
        if self.held:
            self.unasked, self.free = False, self._loop.time()
        super().resume_reading()


class _HeadTooLarge(Exception):
    """Raised while parsing, which ends it."""


class _Connection(HttpToolsProtocol):
    """One client's connection. What is due is worked out when the timer looks, not when bytes come."""

    limits: ClassVar[Timeouts]
    spare: ClassVar[dict[_Connection, None]]
    """Connections that are owed no answer, longest first: where there are too many, they make room."""
    flow: _Flow

    # How uvicorn calls it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected; where there are too many, one without a request goes."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.loop)
        self._stage = _Stage.NOTHING
        self._since = self._now = self._moved = self._flowed = self.loop.time()
        self._left = math.inf  # until when the rest of a body that was answered already may come
        self._size = self._dry = self._unsent = 0
        # Under TLS the transport's own buffer is but the last part of the way. Nothing is added to a buffer that is not
        # empty, so a size that changed means that the client has read.
        self._wire: asyncio.Transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
        self._wire.set_write_buffer_limits(high=0)
        self._timer = self.loop.call_later(self.limits.shortest, self._look)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()
        self.spare[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._timer.cancel()
        self.spare.pop(self, None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Bytes came: those of heads, and between the pieces of a body, are bounded."""
        if self.transport.is_closing():
            return
        self._now = self.loop.time()
        self._dry += len(data)
        super().data_received(data)
        if self._dry > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._stage, self._since = _Stage.HEAD, self._now

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._dry = 0
        if self._head_too_large():
            raise _HeadTooLarge
        self._stage, self._since, self._moved, self._left, self._size = _Stage.BODY, self._now, self._now, math.inf, 0
        self.flow.unasked = self.expect_100_continue
        self.spare.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._dry = 0
        self._size += len(body)
        self._moved = self._now
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._dry = 0
        self._stage = _Stage.WHOLE
        super().on_message_complete()
        self._rest()

    def on_response_complete(self) -> None:
        """The application has answered; the client may still be sending, or reading."""
        unasked = self.flow.unasked
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        self.spare[self] = None
        self._left = self.loop.time() + self.limits.body
        if unasked and self._stage is _Stage.BODY:
            self.transport.close()  # whether its body comes nevertheless, or the next request, cannot be known
        self._rest()

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's own timer between requests, which would cut off an answer that is still being read."""
        self._look()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or too much of it."""
        if self._stage is _Stage.HEAD and self._head_too_large():
            self._refuse_head()
        else:
            self._refuse(400, "not-http", msg)

    # What is due

    def _rest(self) -> None:
        """Nothing is under way any more: the next request may come."""
        if self._stage is _Stage.WHOLE and self.cycle.response_complete:
            self._stage, self._since = _Stage.NOTHING, self.loop.time()

    def _look(self) -> None:
        """See how things stand, and when to look again."""
        self._timer.cancel()
        now = self.loop.time()
        due = min(self._due_to_read(now), self._due_to_send())
        if due <= now:
            self._give_up()
            due = math.inf
        self._timer = self.loop.call_at(min(due, now + self.limits.shortest), self._look)

    def _due_to_read(self, now: float) -> float:
        """When the client must have read something."""
        unsent = self._wire.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._flowed = unsent, now
        if unsent:
            return self._flowed + self.limits.answer
        return now if self.transport.is_closing() else math.inf

    def _due_to_send(self) -> float:
        """When the client must have sent something, or all of it."""
        if self.flow.held or self.transport.is_closing():
            return math.inf
        limits, since = self.limits, max(self._since, self.flow.free)
        if self._stage is _Stage.HEAD:
            return since + limits.head
        if self._stage is _Stage.BODY:
            pause = max(self._moved, self.flow.free) + limits.idle
            return min(pause, since + limits.body + self._size / limits.rate, self._left)
        if self._stage is _Stage.NOTHING and not self._unsent:
            return limits.head + since if self.cycle is None else max(since, self._flowed) + limits.idle
        return math.inf

    # What is done about it

    def _give_up(self) -> None:
        if self._unsent or self.transport.is_closing():
            self._drop()
        elif self._stage is _Stage.NOTHING:
            self.transport.close()
        else:
            what = "head" if self._stage is _Stage.HEAD else "body"
            self._refuse(408, "too-slow", f"the {what} of the request came too slowly; send it again, faster")

    def _make_room(self) -> None:
        """Drop whoever has been without a request the longest and has read all it was sent."""
        for other in self.spare:
            if not other._wire.get_write_buffer_size():
                other._drop()
                return

    def _head_too_large(self) -> bool:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_LIMIT

    def _refuse_head(self) -> None:
        self._refuse(431, "head-too-large", f"a request's head has at most {HEAD_LIMIT} bytes")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Say why, unless an answer is under way or was given, and close."""
        cycle = self.cycle
        answered = cycle is None or cycle.response_complete
        if self._stage is _Stage.BODY and answered:
            self.transport.close()
            return
        if self.pipeline or not (answered or (self._stage is _Stage.BODY and not cycle.response_started)):
            self._drop()
            return
        content = json.dumps({"code": code, "message": message}).encode()
        lines = [name + b": " + value for name, value in self.server_state.default_headers]
        lines += [b"content-type: application/json", b"content-length: %d" % len(content), b"connection: close"]
        self.transport.write(STATUS_LINE[status] + b"\r\n".join([*lines, b"", content]))
        if not answered:
            cycle.disconnected = True  # whatever the application answers now, nobody hears
            cycle.message_event.set()
        self.transport.close()

    def _drop(self) -> None:
        """Close at once, with whatever is unsent."""
        self.connections.discard(self)  # its place is free now
        self.spare.pop(self, None)
        self._wire.abort()
