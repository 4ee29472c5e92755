"""The public set of a federation: uploaded once by the member that has it, stored, and served to members."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from consilience.relay.admission import Admission
from consilience.relay.answer_cache import SharedAnswer
from consilience.relay.answer_endpoints import AnswerEndpoints, as_answer
from consilience.relay.body import read_body
from consilience.relay.federation import FederationService
from consilience.relay.pending_receipts import PendingReceipts
from consilience.relay.rejections import Rejection
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord
from consilience.relay.upload_queue import QueuedUpload
from consilience.wire.roles import PublicSetSettings

PUBLIC_SET_PATH = "/v1/public-set"
"""Where members download it, and its host uploads it."""


def accept_public_set(
    service: FederationService, store: Store, draft: Snapshot, member: MemberRecord, body: bytes
) -> str:
    """Store the public set, if it is the charter's, within a transaction of the caller; returns a receipt."""
    settings = _described(service)
    _check_host(settings, member)
    sha256 = hashlib.sha256(body).hexdigest()
    if (len(body), sha256) != (settings.size, settings.sha256):
        raise Rejection(
            "other-public-set",
            f"a public set of {len(body)} bytes, SHA-256 {sha256}, came; the charter's has {settings.size}, SHA-256 "
            f"{settings.sha256}",
        )
    if not draft.has_public_set:
        store.public_sets.save(service.id, sha256, body)
        store.audit.append("public-set", service.id, member.id, sha256=sha256)
        draft.has_public_set, draft.revision = True, draft.revision + 1
    return json.dumps({"sha256": sha256, "epoch": service.epoch})


class PublicSetEndpoints:
    """Its two endpoints. uploading: the members whose request bodies are being received."""

    def __init__(self, admission: Admission, downloads: AnswerEndpoints, uploading: set[int]) -> None:
        self._admission, self._downloads, self._uploading = admission, downloads, uploading
        self._submit: Callable[[QueuedUpload], object]
        self._receipts: PendingReceipts

    def start(self, submit: Callable[[QueuedUpload], object], receipts: PendingReceipts) -> None:
        """Begin to accept uploads; submit: queues one for the writer."""
        self._submit, self._receipts = submit, receipts

    async def public_set(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """The samples, as 32-bit floats."""
        settings = _described(service)
        if not service.snapshot.has_public_set:
            raise Rejection(
                "no-public-set", f"member {settings.host}, who has the public set, has not uploaded it yet; try again"
            )

        def read(store: Store) -> SharedAnswer:
            body = store.public_sets.get(service.id)
            if body is None:
                raise Rejection("no-public-set", "the public set was damaged and is gone; its host uploads it again")
            return as_answer(body, {"Cache-Control": "private, max-age=31536000, immutable"})

        key = f"public set {service.id} {settings.sha256}"
        return await self._downloads.send_stored(request, member, key, read, settings.size)

    async def upload_public_set(self, request: Request, member: MemberRecord, service: FederationService) -> Response:
        """The samples, from the member that has them."""
        settings = _described(service)
        _check_host(settings, member)
        if member.id in self._uploading:
            raise Rejection("over-quota", "an upload of yours is under way; send one at a time", retry_after=1)
        release = self._admission.hold(request, member, settings.size)
        self._uploading.add(member.id)
        try:
            body = await read_body(request, settings.size, settings.size)
            upload = QueuedUpload(member.id, 0, "", body, is_public_set=True)
            self._submit(upload)
            return Response(await self._receipts.wait(upload.receipt), media_type="application/json")
        finally:
            self._uploading.discard(member.id)
            release()


def _described(service: FederationService) -> PublicSetSettings:
    settings = service.charter.public_set
    if settings is None:
        raise Rejection("not-found", f"federation {service.charter.name} has no public set")
    return settings


def _check_host(settings: PublicSetSettings, member: MemberRecord) -> None:
    if member.number != settings.host:
        raise Rejection("other-role", f"member {settings.host} uploads the public set, and not member {member.number}")
