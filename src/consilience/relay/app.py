"""The relay over HTTP: a token alone identifies the member; whatever is acknowledged is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from consilience.errors import ConsilienceError, WireError
from consilience.relay.activity import Activity, ObservedRequests
from consilience.relay.admission import Admission
from consilience.relay.answer_cache import SharedAnswer
from consilience.relay.answer_endpoints import AnswerEndpoints
from consilience.relay.auth import check_member
from consilience.relay.body import read_body
from consilience.relay.checksums import DamagedRecord
from consilience.relay.direct_routes import ANSWERS_PATH, ROUNDS_PATH, DirectRoutes, Endpoint
from consilience.relay.event_stream import EventStream, format_event
from consilience.relay.federation import FederationService
from consilience.relay.known_answers import KNOWN_ANSWER
from consilience.relay.limits import Limits as Limits
from consilience.relay.logs import event
from consilience.relay.member_cache import MemberCache
from consilience.relay.openapi import description
from consilience.relay.operator_api import OperatorApi
from consilience.relay.pending_receipts import PendingReceipts
from consilience.relay.public_sets import PUBLIC_SET_PATH, PublicSetEndpoints
from consilience.relay.readiness import why_not_ready
from consilience.relay.rejections import Rejection, damaged_federation, damaged_record
from consilience.relay.request_parts import one_header, parse_number
from consilience.relay.responses import PIECE
from consilience.relay.roles import check_uploads, newest_rounds
from consilience.relay.scrape import RelayState, render
from consilience.relay.signed import signed_receipt, signed_status
from consilience.relay.store import Store
from consilience.relay.store_health import writer_state
from consilience.relay.streams import BEFORE_SHUTDOWN, OpenStream, Streams
from consilience.relay.tables import MemberRecord, OperatorRecord
from consilience.relay.upload_queue import QueuedUpload
from consilience.relay.writer import Callbacks, Writer
from consilience.wire.charter import PROTOCOL
from consilience.wire.headers import UPLOAD_HEADER

_HEARTBEAT = 15.0  # seconds between comments on an event stream
_CLOSE = {"Connection": "close"}  # on answers to unknown clients: they get one answer per connection
_COALESCE = 0.1  # seconds during which changes are reported as one event: not every upload wakes every member
log = logging.getLogger("consilience.relay")


class Relay:
    """The endpoints over one store."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.admission = Admission(limits or Limits())
        self.activity = Activity(self.admission.limits.proxies)
        self.operators = OperatorApi(path, self.activity.recent)
        self.downloads = AnswerEndpoints(path, self.admission, self.activity.metrics)
        self.streams = Streams()
        self.store: Store
        self.members: MemberCache
        self.writer: Writer
        self.pending_receipts: PendingReceipts
        self._uploading: set[int] = set()
        self.public_sets = PublicSetEndpoints(self.admission, self.downloads, self._uploading)
        self._loop: asyncio.AbstractEventLoop

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        """Opens the store at the start; at the end, waits until the last upload is on disk."""
        self._loop = asyncio.get_running_loop()
        self.pending_receipts = PendingReceipts(self._loop)
        callbacks = Callbacks(self._on_change, self._on_others_wrote, self.pending_receipts.deliver)
        self.writer = Writer(self.path, callbacks, activity=self.activity)
        self.store = Store(self.path)
        self.members = MemberCache(self.store)
        self.writer.start()
        self.downloads.start(self.store, lambda: self.writer.recounter.repairs)
        self.public_sets.start(self.writer.submit, self.pending_receipts)
        self.operators.start(self.store, self.writer)
        log.info("the relay has started", extra=event("start", store=self.path.name))
        try:
            yield {BEFORE_SHUTDOWN: self._end_streams, KNOWN_ANSWER: self.known_answer}
        finally:
            self._end_streams()
            await self.operators.stop()
            await asyncio.to_thread(self.writer.stop)
            await asyncio.to_thread(self.downloads.close)
            self.store.close()
            log.info("the relay has stopped", extra=event("stop"))

    def _end_streams(self) -> None:
        self.streams.end_all()
        self.operators.end_streams()

    def app(self) -> Starlette:
        """The application that a server serves."""
        answers, upload = self._members_only(self.downloads.answers), self._members_only(self.upload)
        routes = [
            # In the order in which they are tried: the most frequent first.
            Route(ANSWERS_PATH, answers),
            Route(ROUNDS_PATH + "{round}", upload, methods=["PUT"]),
            Route("/v1/channels/{channel}/replies/{version}", self._members_only(self.downloads.reply)),
            Route("/v1/federation", self._members_only(self.federation)),
            Route(PUBLIC_SET_PATH, self._members_only(self.public_sets.public_set)),
            Route(PUBLIC_SET_PATH, self._members_only(self.public_sets.upload_public_set), methods=["PUT"]),
            Route("/v1/events", self._members_only(self.events)),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.operators.operators_only(self.metrics)),
            Route("/openapi.json", self.openapi),
            *self.operators.routes(),
        ]
        app = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            middleware=[
                Middleware(ObservedRequests, activity=self.activity),
                Middleware(DirectRoutes, answers=answers, upload=upload),
            ],
            exception_handlers={HTTPException: _http_error, Rejection: self._rejected, Exception: _internal_error},
        )
        app.router.redirect_slashes = False  # a redirect would name whatever host the client named
        return app

    # -- members -------------------------------------------------------------------------------------------------------

    def _members_only(
        self, endpoint: Callable[[Request, MemberRecord, FederationService], Awaitable[Response]]
    ) -> Endpoint:
        """The endpoint for requests with a member's valid token; a rejection becomes an answer."""

        @functools.wraps(endpoint)
        async def answered(request: Request) -> Response:
            try:
                member, service = self._member(request)
                self.admission.admit(request, member)
                return await endpoint(request, member, service)
            except (Rejection, WireError) as error:
                return _refuse(request, await self.admission.count_failed_login(request, error))
            except (DamagedRecord, sqlite3.DatabaseError) as error:
                log.warning("%s", error, extra=event("damage-found"))
                self.writer.request_repair()
                return _refuse(request, damaged_record())

        return answered

    def _member(self, request: Request) -> tuple[MemberRecord, FederationService]:
        """The member whose token came with a request, and its federation; noted in the request's scope."""
        member = check_member(self.members.get, one_header(request, "authorization"))
        request.scope["member"] = member
        service = self._service(member.federation)
        request.scope["federation"] = service.charter.name
        return member, service

    def known_answer(self, scope: Scope) -> SharedAnswer | None:
        """The answer to a request for answers that was made before, if it is short; None if the endpoint must answer.

        It does not count as bytes in flight: a connection that has not read such an answer gets no second one.
        """
        if not self.downloads.may_know(scope):
            return None
        request = Request(scope)
        try:
            member, service = self._member(request)
            answer = self.downloads.find_known(request, service)
            if answer is None or len(answer.body) > PIECE:
                return None
            self.admission.admit(request, member)
        except (ConsilienceError, sqlite3.DatabaseError):  # the endpoint fails in the same way, and says why
            return None
        scope["endpoint"] = self.downloads.answers
        self.activity.note_answer(scope, 200)
        self.activity.metrics.count_bytes(sent=len(answer.body))
        return answer

    async def _rejected(self, request: Request, error: Exception) -> Response:
        """A rejection by an endpoint for operators."""
        assert isinstance(error, Rejection)
        return _refuse(request, await self.admission.count_failed_login(request, error))

    def _service(self, federation: int) -> FederationService:
        if federation in self.writer.loaded.lost:
            raise damaged_federation(self.writer.loaded.lost[federation])
        if federation not in self.writer.federations:
            raise Rejection("stopping", "this federation is being loaded; try again in a moment", retry_after=1)
        return self.writer.federations[federation]

    # -- endpoints -----------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether the relay can write."""
        state = writer_state(self.writer)
        status = 200 if state == "ok" else 503
        return JSONResponse({"status": state, "protocol": PROTOCOL}, status_code=status, headers=_CLOSE)

    async def ready(self, request: Request) -> Response:
        """Whether members can use the relay now."""
        why = why_not_ready(self.writer, self.streams.stopping)
        return JSONResponse({"status": why or "ready"}, status_code=503 if why else 200, headers=_CLOSE)

    async def metrics(self, request: Request, operator: OperatorRecord) -> Response:
        """What the relay counts and measures, for Prometheus."""
        server, streams = request.scope.get("state", {}), self.streams.count
        connections, certificate = len(server.get("connections", ())), server.get("certificate")
        state = RelayState(self.writer, streams, connections, certificate.expires if certificate else None)
        return Response(await asyncio.to_thread(render, self.activity.metrics, state), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        """The protocol as OpenAPI."""
        return JSONResponse(description(), headers=_CLOSE)

    async def federation(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """The charter, the member that asks, and the federation's progress."""
        receipt = self.store.receipts.get(member.id, member.round)
        status = {
            "protocol": PROTOCOL,
            "charter": service.charter_text,
            "member": {
                "number": member.number,
                "name": member.name,
                "round": member.round,
                "sha256": receipt.sha256 if receipt else None,
            },
            **_progress(service),
            **newest_rounds(self.store, service.id, service.charter),
        }
        return signed_status(service, member, status)

    async def upload(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """One upload of a member for a round."""
        round_ = parse_number("round", request.path_params["round"])
        header = one_header(request, UPLOAD_HEADER)
        if header is None:
            raise Rejection(
                "malformed-upload",
                f"the header {UPLOAD_HEADER} is missing; it says what the body holds",
                field=UPLOAD_HEADER,
            )
        check_uploads(service.charter, member.number, service.messages.parse_header(header))
        expected = service.messages.body_size(header)
        if member.id in self._uploading:  # else one member could use up all connections and memory
            raise Rejection("over-quota", "an upload of yours is under way; send one at a time", retry_after=1)
        release = self.admission.hold(request, member, expected)
        self._uploading.add(member.id)
        try:
            body = await read_body(request, service.messages.largest, expected)
            receipt = self.writer.submit(QueuedUpload(member.id, round_, header, body))
            return signed_receipt(service, member, round_, await self.pending_receipts.wait(receipt))
        finally:
            self._uploading.discard(member.id)
            release()

    async def events(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """Server-sent events: one after each change, and comments in between."""
        stream = self.streams.open(member, request.headers["authorization"])
        if request.method == "HEAD":
            self.streams.close(stream)
            return Response(media_type="text/event-stream")
        return EventStream(self._events(stream, service), lambda: self.streams.close(stream))

    async def _events(self, stream: OpenStream, service: FederationService) -> AsyncIterator[str]:
        sent = ""
        while not stream.ended and not self._has_ended(stream):
            news = format_event("news", json.dumps(_progress(service)))
            if news != sent:  # a change during the pause below was reported after it, and has woken the stream as well
                yield (sent := news)
            while not await stream.wait(_HEARTBEAT):
                if self._has_ended(stream):
                    return
                yield ": still here\n\n"
            if not stream.ended:
                await asyncio.sleep(_COALESCE)

    def _has_ended(self, stream: OpenStream) -> bool:
        """Whether an event stream ends: its token was revoked, replaced or has expired."""
        try:
            check_member(self.members.get, stream.authorization)
        except (Rejection, DamagedRecord, sqlite3.DatabaseError):
            return True
        return False

    def _on_change(self, federation: int) -> None:
        """Called by the writer's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.streams.wake, federation)

    def _on_others_wrote(self) -> None:
        """Called by the writer's thread: a member may have been revoked."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.streams.end, self._has_ended)


def _progress(service: FederationService) -> dict[str, object]:
    snapshot = service.snapshot
    versions = {name: moving.version for name, moving in snapshot.moving.items()}
    counts: dict[str, object] = {"expected": snapshot.expected, "waiting": snapshot.waiting}
    counts |= {} if service.charter.public_set is None else {"public_set": snapshot.has_public_set}
    return {
        "epoch": service.epoch,
        "revision": snapshot.revision,
        "round": snapshot.round,
        "versions": versions,
        **counts,
    }


def _refuse(request: Request, error: Rejection | WireError) -> Response:
    """The answer to a refused request; the request's scope then says why, for `Activity`."""
    if isinstance(error, WireError):
        error = Rejection(error.code, str(error), field=error.field)
    request.scope["refused"] = error
    headers = {} if error.retry_after is None else {"Retry-After": str(int(error.retry_after))}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in (401, 403, 408, 413) or error.code in ("too-many-connections", "too-many-logins"):
        headers |= _CLOSE
    return JSONResponse(error.content(), status_code=error.status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "malformed-query")
    message = "no such path; /openapi.json lists them" if code == "not-found" else str(error.detail)
    request.scope["refused"] = rejection = Rejection(code, message)
    return JSONResponse(rejection.content(), status_code=error.status_code, headers={**(error.headers or {}), **_CLOSE})


async def _internal_error(request: Request, error: Exception) -> Response:
    """An error of the relay itself; the answer shows no detail of it."""
    log.error("an internal error at %s %s: %s", request.method, request.url.path[:80], type(error).__name__)
    return JSONResponse(
        {"code": "fault", "message": "the relay has an internal error; nothing was saved"}, status_code=500
    )
