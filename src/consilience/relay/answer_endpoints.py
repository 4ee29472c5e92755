"""The endpoints from which members download: answers, which members share where they are the same, and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from consilience.relay.admission import Admission
from consilience.relay.answer_cache import AnswerCache, Build, SharedAnswer
from consilience.relay.answers import AnswerBuilder, AnswerRequest
from consilience.relay.federation import FederationService
from consilience.relay.known_answers import KnownAnswers
from consilience.relay.metrics import Metrics
from consilience.relay.rejections import Rejection
from consilience.relay.request_parts import answer_request, parse_number
from consilience.relay.responses import SharedResponse
from consilience.relay.robust_answers import Outdated
from consilience.relay.signed import reply_proof
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord

_BODY = "application/octet-stream"
_TRIES, _PAUSE = 20, 0.05  # how often, and after how many seconds, an answer is begun again with a newer snapshot
_LITTLE = 128 * 1024  # bytes of work: an answer of less takes longer to hand to a thread than to make


class AnswerEndpoints:
    """Answers and replies. `start` it with a store that only the event loop reads, and `close` it at the end.

    repairs: how often damaged records have been repaired; an answer that was made before may name a reply that is gone.
    """

    def __init__(self, path: Path, admission: Admission, metrics: Metrics) -> None:
        self._path, self._admission, self._metrics = path, admission, metrics
        self._known = KnownAnswers()
        self._cache: AnswerCache
        self._store: Store
        self._repairs: Callable[[], int]

    def start(self, store: Store, repairs: Callable[[], int]) -> None:
        """Begin to answer."""
        self._store, self._repairs = store, repairs
        self._cache = AnswerCache(self._path, self._admission.limits.cache)

    def close(self) -> None:
        """End the threads that make answers."""
        self._cache.close()

    async def answers(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """One body with the requested answers; 304 if the member has them already."""
        for _ in range(_TRIES):
            try:
                return await self._answer(request, member, service)
            except Outdated:
                await asyncio.sleep(_PAUSE)
        message = "the federation changes faster than its mean can be computed; try again in a moment"
        raise Rejection("busy", message, retry_after=1)

    async def _answer(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        builder, snapshot = service.answers, service.snapshot
        wanted = builder.check(answer_request(request, service))
        if wanted.partners:
            builder.scoped.check(member.number, wanted.partners)
        etag, shared = builder.etag(snapshot, member.number, wanted), not builder.draws(snapshot, wanted)
        if f'"{etag}"' in [known.strip() for known in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers={"ETag": f'"{etag}"'})

        def build(store: Store) -> SharedAnswer:
            with self._metrics.answer():
                return _build(builder, store, snapshot, member.number, wanted)

        key = f"{etag} {self._repairs()}"
        answer = await self._make(key, member, build, builder.work(wanted), keep=shared)
        if shared:
            self._known.remember(service.id, request.scope["query_string"], snapshot, key)
        return self._send(request, member, answer)

    def may_know(self, scope: Scope) -> bool:
        """Whether a request may have been answered before: looked at first, as most requests for pools were not."""
        return self._known.may_have(scope["query_string"])

    def find_known(self, request: Request, service: FederationService) -> SharedAnswer | None:
        """The answer to a request that was answered before, without reading its query; None if it must be read."""
        key = self._known.find(service.id, request.scope["query_string"], service.snapshot)
        return self._cache.get(key) if key else None

    async def reply(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """By how much the common values of a moving mean moved to become one version."""
        channel, version = request.path_params["channel"], parse_number("version", request.path_params["version"])

        def read(store: Store) -> SharedAnswer:
            body = store.replies.get(service.id, channel, version)
            if body is None:
                raise Rejection(
                    "no-such-reply", f"{channel[:80]}: reply {version} is not stored; ask for answers without `have`"
                )
            proof = reply_proof(service, channel, version, body)
            return as_answer(body, {"Cache-Control": "private, max-age=31536000, immutable", **proof})

        key = f"reply {service.epoch} {self._repairs()} {service.id} {version} {channel}"
        work = service.messages.reply_codec(channel).size if channel in service.moving else 0
        return self._send(request, member, await self._make(key, member, read, work, keep=True))

    async def send_stored(self, request: Request, member: MemberRecord, key: str, read: Build, size: int) -> Response:
        """A response that is read from the store, so many bytes; those who ask at the same time share it."""
        return self._send(request, member, await self._make(f"{key} {self._repairs()}", member, read, size, keep=False))

    async def _make(self, key: str, member: MemberRecord, build: Build, work: int, *, keep: bool) -> SharedAnswer:
        """An answer, made here if that is little work, else in a thread."""
        if work <= _LITTLE:
            return self._cache.get(key) or self._cache.keep(key, build(self._store), keep=keep)
        return await self._cache.get_or_make(key, member.id, build, keep=keep)

    def _send(self, request: Request, member: MemberRecord, answer: SharedAnswer) -> Response:
        return SharedResponse(answer, self._admission.hold(request, member, len(answer.body), answer.body))


def _build(
    builder: AnswerBuilder, store: Store, snapshot: Snapshot, number: int, wanted: AnswerRequest
) -> SharedAnswer:
    """An answer with its headers; called in a thread."""
    made = builder.build(store, snapshot, number, wanted)
    return as_answer(made.body, {**made.headers, "Cache-Control": "private, no-cache"})


def as_answer(body: bytes, headers: Mapping[str, str]) -> SharedAnswer:
    """A body with its headers, which all who read it share."""
    given = Response(headers={**headers, "Content-Length": str(len(body))}, media_type=_BODY)
    return SharedAnswer(given.raw_headers, body)
