"""The relay over HTTP: a token alone identifies the member; whatever is acknowledged is on disk."""

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
from consilience.relay.answers import AnswerRequest
from consilience.relay.auth import read_token
from consilience.relay.federation import FederationService
from consilience.relay.openapi import description
from consilience.relay.rate_limit import RateLimit
from consilience.relay.rejections import Rejection
from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord
from consilience.relay.writer import QueuedUpload, Writer
from consilience.wire import tokens
from consilience.wire.charter import PROTOCOL
from consilience.wire.headers import ANSWER_HEADER, LATEST_ROUND, UPLOAD_HEADER, format_parts

_BODY = "application/octet-stream"
_HEARTBEAT = 15.0  # seconds between comments on an event stream
_STREAMS = 4  # event streams per member
_CLOSE = {"Connection": "close"}  # on answers to unknown clients: they get one answer per connection
_COALESCE = 0.1  # seconds during which changes are reported as one event: not every upload wakes every member
log = logging.getLogger("consilience.relay")
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """How many requests one member may make: `rate` per second, `burst` at once; a rate of 0 is no limit."""

    rate: float = 20.0
    burst: int = 100


class Relay:
    """The endpoints over one store."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.path = path
        self.rate_limit = RateLimit(limits.rate, limits.burst)
        self.store: Store
        self.writer: Writer
        self._changed: dict[int, asyncio.Event] = {}
        self._streams: Counter[int] = Counter()
        self._uploading: set[int] = set()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Opens the store at the start; at the end, waits until the last upload is on disk."""
        self._loop = asyncio.get_running_loop()
        self.writer = Writer(self.path, self._on_change)
        self.store = Store(self.path)
        self.writer.start()
        try:
            yield
        finally:
            self._stopping.set()
            for federation in list(self._changed):
                self._wake(federation)
            await asyncio.to_thread(self.writer.stop)
            self.store.close()

    def app(self) -> Starlette:
        """The application that a server serves."""
        routes = [
            Route("/health", self.health),
            Route("/openapi.json", self.openapi),
            Route("/v1/federation", self._members_only(self.federation)),
            Route("/v1/rounds/{round}", self._members_only(self.upload), methods=["PUT"]),
            Route("/v1/answers", self._members_only(self.answers)),
            Route("/v1/channels/{channel}/replies/{version}", self._members_only(self.reply)),
            Route("/v1/events", self._members_only(self.events)),
        ]
        app = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        )
        app.router.redirect_slashes = False  # a redirect would name whatever host the client named
        return app

    # -- members -------------------------------------------------------------------------------------------------------

    def _members_only(
        self, endpoint: Callable[[Request, MemberRecord, FederationService], Awaitable[Response]]
    ) -> Endpoint:
        """The endpoint for requests with a valid token; a rejection becomes an answer."""

        async def checked(request: Request) -> Response:
            try:
                member = self._member(request)
                self.rate_limit.count(member.id)
                return await endpoint(request, member, self._service(member.federation))
            except (Rejection, WireError) as error:
                return _rejection_response(error)

        return checked

    def _member(self, request: Request) -> MemberRecord:
        """The member whose token it is; looked up at each request, so that a revoked token is refused at once."""
        token = read_token(_one_header(request, "authorization"))
        member = self.store.members.get(token.member)
        if not tokens.matches(token, member.token_hash if member else b"") or member is None:
            raise Rejection("wrong-token", "this token is unknown to this relay")
        if member.revoked:
            raise Rejection("revoked", "this token has been revoked; ask the operator of the relay")
        return member

    def _service(self, federation: int) -> FederationService:
        if federation not in self.writer.federations:
            raise Rejection("stopping", "this federation is being loaded; try again in a moment", retry_after=1)
        return self.writer.federations[federation]

    # -- endpoints -----------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether the relay can write."""
        well = self.writer.alive and not self.writer.failing
        trouble = "disk full" if self.writer.full else "cannot write"
        state = "ok" if well else (trouble if self.writer.alive else "stopping")
        status = 200 if well else 503
        return JSONResponse({"status": state, "protocol": PROTOCOL}, status_code=status, headers=_CLOSE)

    async def openapi(self, request: Request) -> Response:
        """The protocol as OpenAPI."""
        return JSONResponse(description(), headers=_CLOSE)

    async def federation(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """The charter, the member that asks, and the federation's progress."""
        receipt = self.store.receipts.get(member.id, member.round)
        return JSONResponse(
            {
                "protocol": PROTOCOL,
                "charter": service.charter_text,
                "member": {
                    "number": member.number,
                    "name": member.name,
                    "round": member.round,
                    "sha256": receipt.sha256 if receipt else None,
                },
                **_progress(service),
            }
        )

    async def upload(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """One upload of a member for a round."""
        round_ = _number("round", request.path_params["round"])
        header = _one_header(request, UPLOAD_HEADER)
        if header is None:
            raise Rejection(
                "malformed-upload",
                f"the header {UPLOAD_HEADER} is missing; it says what the body holds",
                field=UPLOAD_HEADER,
            )
        expected = service.messages.body_size(header)
        if member.id in self._uploading:  # else one member could use up all connections and memory
            raise Rejection("over-quota", "an upload of yours is under way; send one at a time", retry_after=1)
        self._uploading.add(member.id)
        try:
            body = await _read_body(request, service.messages.largest, expected)
            receipt = self.writer.submit(QueuedUpload(member.id, round_, header, body))
            return Response(await asyncio.wrap_future(receipt), media_type="application/json")
        finally:
            self._uploading.discard(member.id)

    async def answers(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """One body with the requested answers; 304 if the member has them already."""
        wanted = service.answers.check(_answer_request(request, service))
        etag = f'"{service.answers.etag(service.snapshot, member.number, wanted)}"'
        if etag in [known.strip() for known in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers={"ETag": etag})
        answer = service.answers.build(self.store, service.snapshot, member.number, wanted)
        headers = {
            "ETag": f'"{answer.etag}"',
            ANSWER_HEADER: format_parts(answer.parts),
            "Cache-Control": "private, no-cache",
        }
        return Response(answer.body, media_type=_BODY, headers=headers)

    async def reply(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """By how much the common values of a moving mean moved to become one version."""
        channel, version = request.path_params["channel"], _number("version", request.path_params["version"])
        body = self.store.channel_states.reply(service.id, channel, version)
        if body is None:
            raise Rejection(
                "no-such-reply", f"{channel[:80]}: reply {version} is not stored; ask for answers without `have`"
            )
        return Response(body, media_type=_BODY, headers={"Cache-Control": "private, max-age=31536000, immutable"})

    async def events(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """Server-sent events: one after each change, and comments in between."""
        if self._streams[member.id] >= _STREAMS:
            raise Rejection("over-quota", f"at most {_STREAMS} event streams at once are allowed", retry_after=10)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        self._streams[member.id] += 1
        return _EventStream(self._events(member, service), lambda: self._streams.subtract([member.id]))

    async def _events(self, member: MemberRecord, service: FederationService) -> AsyncIterator[str]:
        while not self._stopping.is_set():
            changed = self._changed.setdefault(service.id, asyncio.Event())
            yield f"event: news\ndata: {json.dumps(_progress(service))}\n\n"
            while not await _wait_for(changed, _HEARTBEAT):
                if self._has_ended(member):
                    return
                yield ": still here\n\n"
            if self._has_ended(member):
                return
            await asyncio.sleep(_COALESCE)

    def _has_ended(self, member: MemberRecord) -> bool:
        """Whether a member's event stream ends: the relay stops, or the token has been revoked."""
        if self._stopping.is_set():
            return True
        now = self.store.members.get(member.id)
        return now is None or bool(now.revoked)

    def _on_change(self, federation: int) -> None:
        """Called by the writer's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake, federation)

    def _wake(self, federation: int) -> None:
        changed = self._changed.pop(federation, None)
        if changed is not None:
            changed.set()


class _EventStream(StreamingResponse):
    """Server-sent events; `on_end` is called once, however the stream ends and even if it never started."""

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _progress(service: FederationService) -> dict[str, object]:
    snapshot = service.snapshot
    versions = {name: moving.version for name, moving in snapshot.moving.items()}
    counts = {"expected": snapshot.expected, "waiting": snapshot.waiting}
    return {"revision": snapshot.revision, "round": snapshot.round, "versions": versions, **counts}


def _one_header(request: Request, name: str) -> str | None:
    """A header that may be sent once: of two, the relay and a proxy before it might each use a different one."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Rejection("malformed-query", f"the header {name} was sent {len(values)} times; send it once", field=name)
    return values[0] if values else None


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within this time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _read_body(request: Request, largest: int, expected: int) -> bytes:
    """The body, of the expected length.

    A declared length above the largest allowed size is refused before reading; else reading stops with the first chunk
    beyond that size. Whether the length is the expected one is checked when all of the body is there.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 19 or int(declared) > largest):
        raise Rejection("too-large", f"a body of {declared[:20]} bytes was declared; at most {largest} are accepted")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                raise Rejection("too-large", f"more than {largest} bytes were received; at most {largest} are accepted")
    except ClientDisconnect:
        raise Rejection("too-slow", "the connection ended before the body did") from None
    if len(body) != expected:
        raise WireError(
            f"a body of {len(body)} bytes was received; this message takes exactly {expected}", code="wrong-length"
        )
    return bytes(body)


def _answer_request(request: Request, service: FederationService) -> AnswerRequest:
    """The request in `?round=3&channel=NAME&have=NAME:VERSION&draw=NAME:N&turn=0`; without channels, all."""
    query = request.query_params
    for key in query:
        if key not in ("round", "channel", "have", "draw", "turn"):
            raise Rejection("malformed-query", f"unknown parameter {key[:80]!r}", field=key[:80])
    for key in ("round", "turn"):
        if len(query.getlist(key)) > 1:
            times = len(query.getlist(key))
            raise Rejection("malformed-query", f"{key} was sent {times} times; send it once", field=key)
    return AnswerRequest(
        tuple(query.getlist("channel")) or tuple(service.channels),
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


def _rejection_response(error: Rejection | WireError) -> Response:
    if isinstance(error, WireError):
        error = Rejection(error.code, str(error), field=error.field)
    headers = {} if error.retry_after is None else {"Retry-After": str(int(error.retry_after))}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in (401, 403, 408, 413):
        headers |= _CLOSE
    return JSONResponse(error.content(), status_code=error.status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "malformed-query")
    message = "no such path; /openapi.json lists them" if code == "not-found" else str(error.detail)
    rejection = Rejection(code, message)
    return JSONResponse(rejection.content(), status_code=error.status_code, headers={**(error.headers or {}), **_CLOSE})


async def _internal_error(request: Request, error: Exception) -> Response:
    """An error of the relay itself; the answer shows no detail of it."""
    log.error("an internal error at %s %s: %s", request.method, request.url.path[:80], type(error).__name__)
    return JSONResponse(
        {"code": "fault", "message": "the relay has an internal error; nothing was saved"}, status_code=500
    )
