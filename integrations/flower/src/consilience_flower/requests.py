"""Requests to a relay and its responses as records of a Flower message.

A reply of a node has the requests that the node wants to make, and the next message to it has the relay's responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord

from consilience.errors import WireError

RECORD = "consilience"
"""The record of a message that is the bridge's own."""
STATUS = "/v1/federation"
"""The path of a member's status, which comes with every message."""


@dataclass(frozen=True)
class RelayRequest:
    """One request of a member."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class RelayResponse:
    """What a relay answered to it. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def pack_requests(requests: Iterable[RelayRequest]) -> ConfigRecord:
    """Requests as a record; bodies stay bytes."""
    listed = list(requests)
    heads = [[each.method, each.path, dict(each.headers)] for each in listed]
    return ConfigRecord({"requests": json.dumps(heads), "bodies": [each.body for each in listed]})


def unpack_requests(record: ConfigRecord) -> list[RelayRequest]:
    """The requests in a record."""
    heads, bodies = _parts(record, "requests")
    return [RelayRequest(str(m), str(p), dict(h), b) for (m, p, h), b in zip(heads, bodies, strict=True)]


def pack_responses(responses: Mapping[str, RelayResponse], more: Mapping[str, str | int]) -> ConfigRecord:
    """Responses by the path of their request, and what else the message says."""
    heads = [[path, each.status, dict(each.headers)] for path, each in responses.items()]
    bodies = [each.body for each in responses.values()]
    return ConfigRecord({"responses": json.dumps(heads), "bodies": bodies, **more})


def unpack_responses(record: ConfigRecord) -> dict[str, RelayResponse]:
    """The responses in a record, by the path of their request."""
    heads, bodies = _parts(record, "responses")
    return {str(p): RelayResponse(int(s), dict(h), b) for (p, s, h), b in zip(heads, bodies, strict=True)}


def _parts(record: ConfigRecord, key: str) -> tuple[list[list[object]], list[bytes]]:
    try:
        heads, bodies = json.loads(str(record[key])), record["bodies"]
        if not isinstance(bodies, list) or len(heads) != len(bodies) or any(len(each) != 3 for each in heads):
            raise ValueError("its parts do not belong together")
        return heads, [bytes(each) for each in bodies]  # type: ignore[arg-type]
    except (KeyError, ValueError, TypeError) as error:
        raise WireError(
            f"a Flower message has no {key} of this bridge: {error}; run the same version of consilience-flower at "
            f"the server and at all nodes",
            code="malformed-message",
        ) from error
