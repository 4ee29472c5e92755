"""Responses with their digest and the relay's signature: what they say, of which federation, and to whom."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from consilience.relay.federation import FederationService
from consilience.relay.tables import MemberRecord
from consilience.wire.signatures import RECEIPT, REPLY, STATUS

_JSON = "application/json"


def signed_status(service: FederationService, member: MemberRecord, status: dict[str, Any]) -> Response:
    """A federation's status, for one member."""
    body = json.dumps(status).encode()
    proof = service.signer.proof_headers(STATUS, service.epoch, {"member": member.number}, body)
    return Response(body, media_type=_JSON, headers=proof)


def signed_receipt(service: FederationService, member: MemberRecord, round_: int, receipt: str) -> Response:
    """The receipt of an upload; the same one has the same signature, also in a later epoch."""
    body, epoch = receipt.encode(), json.loads(receipt).get("epoch", service.epoch)
    proof = service.signer.proof_headers(RECEIPT, epoch, {"member": member.number, "round": round_}, body)
    return Response(body, media_type=_JSON, headers=proof)


def reply_proof(service: FederationService, channel: str, version: int, body: bytes) -> dict[str, str]:
    """The headers that prove by how much the common values of a moving mean moved to become a version."""
    return service.signer.proof_headers(REPLY, service.epoch, {"channel": channel, "version": version}, body)
