"""The relay over HTTP: who asks is told by the token alone; what is acknowledged is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from consilience.errors import WireError
from consilience.relay.answers import Question
from consilience.relay.auth import read_token
from consilience.relay.federation import FederationService
from consilience.relay.openapi import description
from consilience.relay.rate_limit import Quota
from consilience.relay.rejections import Rejection
from consilience.relay.store import Member, Store
from consilience.relay.writer import Putting, Writer
from consilience.wire import tokens
from consilience.wire.charter import PROTOCOL
from consilience.wire.headers import ANSWER_HEADER, LATEST_ROUND, UPLOAD_HEADER, format_parts

_BODY = "application/octet-stream"
_BEAT = 15.0  # seconds between signs of life on a stream of events
_STREAMS = 4  # of events, for one member
_LAST = {"Connection": "close"}  # of answers to nobody known: one each, so that none lie about unread
_TOGETHER = 0.1  # seconds in which news are told as one: not every upload wakes everybody
log = logging.getLogger("consilience.relay")
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """What one member may ask for in a while: requests a second and at once; a rate of 0 is no limit."""

    rate: float = 20.0
    burst: int = 100


class Relay:
    """The endpoints over one store."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.path = path
        self.quota = Quota(limits.rate, limits.burst)
        self.store: Store
        self.writer: Writer
        self._news: dict[int, asyncio.Event] = {}
        self._streams: Counter[int] = Counter()
        self._putting: set[int] = set()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """From the store's opening to the last upload on disk."""
        self._loop = asyncio.get_running_loop()
        self.writer = Writer(self.path, self._tell)
        self.store = Store(self.path)
        self.writer.start()
        try:
            yield
        finally:
            self._stopping.set()
            for federation in list(self._news):
                self._wake(federation)
            await asyncio.to_thread(self.writer.stop)
            self.store.close()

    def app(self) -> Starlette:
        """The application that a server serves."""
        routes = [
            Route("/health", self.health),
            Route("/openapi.json", self.openapi),
            Route("/v1/federation", self._guarded(self.federation)),
            Route("/v1/rounds/{round}", self._guarded(self.put), methods=["PUT"]),
            Route("/v1/answers", self._guarded(self.answers)),
            Route("/v1/channels/{channel}/replies/{version}", self._guarded(self.reply)),
            Route("/v1/events", self._guarded(self.events)),
        ]
        app = Starlette(
            routes=routes, lifespan=self.lifespan, exception_handlers={HTTPException: _unknown, Exception: _stumbled}
        )
        app.router.redirect_slashes = False  # a redirection would name whatever host the asker named
        return app

    # -- who asks ------------------------------------------------------------------------------------------------------

    def _guarded(self, endpoint: Callable[[Request, Member, FederationService], Awaitable[Response]]) -> Endpoint:
        """The endpoint for members only; what it refuses becomes an answer."""

        async def guarded(request: Request) -> Response:
            try:
                member = self._member(request)
                self.quota.take(member.id)
                return await endpoint(request, member, self._hall(member.federation))
            except (Rejection, WireError) as error:
                return _refused(error)

        return guarded

    def _member(self, request: Request) -> Member:
        """Whose token it is: looked up each time, so that a revoked one opens nothing from then on."""
        token = read_token(_one_header(request, "authorization"))
        member = self.store.member(token.member)
        if not tokens.matches(token, member.token if member else b"") or member is None:
            raise Rejection("wrong-token", "this token is not known here")
        if member.revoked:
            raise Rejection("revoked", "this token was revoked; ask whoever runs the relay")
        return member

    def _hall(self, federation: int) -> FederationService:
        halls = self.writer.halls
        if federation not in halls:
            raise Rejection("stopping", "this federation is being opened; try again in a moment", retry_after=1)
        return halls[federation]

    # -- endpoints -----------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether it writes."""
        well = self.writer.alive and not self.writer.failing
        trouble = "disk full" if self.writer.full else "cannot write"
        said = "ok" if well else (trouble if self.writer.alive else "stopping")
        status = 200 if well else 503
        return JSONResponse({"status": said, "protocol": PROTOCOL}, status_code=status, headers=_LAST)

    async def openapi(self, request: Request) -> Response:
        """The protocol, for programs."""
        return JSONResponse(description(), headers=_LAST)

    async def federation(self, request: Request, member: Member, hall: FederationService) -> Response:
        """What was agreed on, who asks, and how things stand."""
        kept = self.store.receipt(member.id, member.round)
        return JSONResponse(
            {
                "protocol": PROTOCOL,
                "charter": hall.text,
                "member": {
                    "number": member.number,
                    "name": member.name,
                    "round": member.round,
                    "sha256": kept[0] if kept else None,
                },
                **_standing(hall),
            }
        )

    async def put(self, request: Request, member: Member, hall: FederationService) -> Response:
        """One upload of a member for a round."""
        round_ = _number("round", request.path_params["round"])
        put = _one_header(request, UPLOAD_HEADER)
        if put is None:
            raise Rejection(
                "malformed-put", f"say what the body holds, in the header {UPLOAD_HEADER}", field=UPLOAD_HEADER
            )
        expected = hall.messages.size(put)
        if member.id in self._putting:  # or one member could hold all connections, and their bodies
            raise Rejection("over-quota", "an upload of yours is under way; one at a time is taken", retry_after=1)
        self._putting.add(member.id)
        try:
            body = await _body(request, hall.messages.largest, expected)
            receipt = self.writer.put(Putting(member.id, round_, put, body))
            return Response(await asyncio.wrap_future(receipt), media_type="application/json")
        finally:
            self._putting.discard(member.id)

    async def answers(self, request: Request, member: Member, hall: FederationService) -> Response:
        """One body with the answers asked for; nothing where the asker has them already."""
        question = hall.answers.asked(_question(request, hall))
        etag = f'"{hall.answers.etag(hall.sight, member.number, question)}"'
        if etag in [known.strip() for known in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers={"ETag": etag})
        reply = hall.answers.answer(self.store, hall.sight, member.number, question)
        headers = {
            "ETag": f'"{reply.etag}"',
            ANSWER_HEADER: format_parts(reply.parts),
            "Cache-Control": "private, no-cache",
        }
        return Response(reply.body, media_type=_BODY, headers=headers)

    async def reply(self, request: Request, member: Member, hall: FederationService) -> Response:
        """By how much common values moved once."""
        channel, version = request.path_params["channel"], _number("version", request.path_params["version"])
        body = self.store.reply(hall.id, channel, version)
        if body is None:
            raise Rejection(
                "no-such-reply", f"{channel[:80]}: no reply {version} is kept; ask for answers without `have`"
            )
        return Response(body, media_type=_BODY, headers={"Cache-Control": "private, max-age=31536000, immutable"})

    async def events(self, request: Request, member: Member, hall: FederationService) -> Response:
        """A line each time something is new, and now and then a sign of life."""
        if self._streams[member.id] >= _STREAMS:
            raise Rejection("over-quota", f"{_STREAMS} streams of events at once are allowed", retry_after=10)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        self._streams[member.id] += 1
        return _Stream(self._events(member, hall), lambda: self._streams.subtract([member.id]))

    async def _events(self, member: Member, hall: FederationService) -> AsyncIterator[str]:
        while not self._stopping.is_set():
            news = self._news.setdefault(hall.id, asyncio.Event())
            yield f"event: news\ndata: {json.dumps(_standing(hall))}\n\n"
            while not await _within(_BEAT, news):
                if self._over(member):
                    return
                yield ": still here\n\n"
            if self._over(member):
                return
            await asyncio.sleep(_TOGETHER)

    def _over(self, member: Member) -> bool:
        """Whether there is nothing more to tell a member: the relay stops, or its token was revoked."""
        if self._stopping.is_set():
            return True
        now = self.store.member(member.id)
        return now is None or bool(now.revoked)

    def _tell(self, federation: int) -> None:
        """From the writer's thread: something is new."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake, federation)

    def _wake(self, federation: int) -> None:
        news = self._news.pop(federation, None)
        if news is not None:
            news.set()


class _Stream(StreamingResponse):
    """Events; `ended` is called once, however it ends, and though it may never have begun."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _standing(hall: FederationService) -> dict[str, object]:
    sight = hall.sight
    versions = {name: moving.version for name, moving in sight.moving.items()}
    counts = {"expected": sight.expected, "waiting": sight.waiting}
    return {"revision": sight.revision, "round": sight.newest, "versions": versions, **counts}


def _one_header(request: Request, name: str) -> str | None:
    """A header that is there once or not at all: of two, a relay and what stands before it may believe another each."""
    said = request.headers.getlist(name)
    if len(said) > 1:
        raise Rejection("malformed-query", f"the header {name} is there {len(said)} times; send it once", field=name)
    return said[0] if said else None


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _body(request: Request, largest: int, expected: int) -> bytes:
    """The body, read no further than a chunk beyond what may be."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 19 or int(declared) > largest):
        raise Rejection("too-large", f"a body of {declared[:20]} bytes was declared; {largest} is the most here")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                raise Rejection("too-large", f"more than {largest} bytes came; that is the most here")
    except ClientDisconnect:
        raise Rejection("too-slow", "the connection ended before the body did") from None
    if len(body) != expected:
        raise WireError(
            f"a body of {len(body)} bytes was received; this message takes exactly {expected}", code="wrong-length"
        )
    return bytes(body)


def _question(request: Request, hall: FederationService) -> Question:
    """What `?round=3&channel=NAME&have=NAME:VERSION&draw=NAME:N&turn=0` asks; without channels, all."""
    query = request.query_params
    for key in query:
        if key not in ("round", "channel", "have", "draw", "turn"):
            raise Rejection("malformed-query", f"unknown parameter {key[:80]!r}", field=key[:80])
    for key in ("round", "turn"):
        if len(query.getlist(key)) > 1:
            raise Rejection(
                "malformed-query", f"{key} is there {len(query.getlist(key))} times; say it once", field=key
            )
    return Question(
        tuple(query.getlist("channel")) or tuple(hall.channels),
        _number("round", query.get("round", "0")),
        _pairs("have", query.getlist("have")),
        _pairs("draw", query.getlist("draw")),
        _number("turn", query.get("turn", "0")),
    )


def _number(what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= LATEST_ROUND):
        raise Rejection("malformed-query", f"{what} is {text[:80]!r}; a whole number, 0 to 2^53, is needed", field=what)
    return int(text)


def _pairs(what: str, texts: list[str]) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition(":")
        if name in pairs:
            raise Rejection("malformed-query", f"{what} names {name[:80]!r} twice", field=what)
        pairs[name] = _number(what, number)
    return pairs


def _refused(error: Rejection | WireError) -> Response:
    if isinstance(error, WireError):
        error = Rejection(error.code, str(error), field=error.field)
    headers = {} if error.retry_after is None else {"Retry-After": str(int(error.retry_after))}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in (401, 403, 408, 413):
        headers |= _LAST
    return JSONResponse(error.content(), status_code=error.status, headers=headers)


async def _unknown(request: Request, error: Exception) -> Response:
    """Places and methods that are not there."""
    assert isinstance(error, HTTPException)
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "malformed-query")
    said = Rejection(code, {"not-found": "there is nothing here; see /openapi.json"}.get(code, str(error.detail)))
    return JSONResponse(said.content(), status_code=error.status_code, headers={**(error.headers or {}), **_LAST})


async def _stumbled(request: Request, error: Exception) -> Response:
    """A fault of the relay's own: told without any of its insides."""
    log.error("a fault at %s %s: %s", request.method, request.url.path[:80], type(error).__name__)
    return JSONResponse({"code": "fault", "message": "the relay has made a mistake; nothing was kept"}, status_code=500)
