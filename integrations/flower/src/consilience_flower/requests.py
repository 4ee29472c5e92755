"""Requests to a relay and its responses as records of a Flower message.

A reply of a node has the requests that the node wants to make, and the next message to it has the relay's responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from flwr.app import ConfigRecord, Message

from consilience.errors import WireError

RECORD = "consilience"
"""The record of a message that is the bridge's own."""
AGAIN = "again"
"""The key that is true in the reply of a node which needs responses first, and then the same message again."""
STATUS_PATH, ANSWERS_PATH = "/v1/federation", "/v1/answers"
"""The path of a member's status, which comes with every message, and that of answers."""
SAME_VERSION = "run the same version of consilience-flower at the server and at all nodes"


@dataclass(frozen=True)
class RelayRequest:
    """One request of a member."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def key(self) -> str:
        """By which the response is found. Answers are found in whichever round they were asked for."""
        parts = urlsplit(self.path)
        if parts.path != ANSWERS_PATH:
            return f"{self.method} {self.path}"
        asked = sorted(pair for pair in parse_qsl(parts.query) if pair[0] != "round")
        return f"{self.method} {ANSWERS_PATH} {asked}"


@dataclass(frozen=True)
class RelayResponse:
    """What a relay answered to it. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


STATUS = RelayRequest("GET", STATUS_PATH)
"""The request for a member's status."""
Responses = dict[str, RelayResponse]
"""Responses by the key of their request."""


def pack_requests(requests: Iterable[RelayRequest]) -> ConfigRecord:
    """Requests as a record; bodies stay bytes."""
    listed = list(requests)
    heads = [[each.method, each.path, dict(each.headers)] for each in listed]
    return ConfigRecord({"requests": json.dumps(heads), "bodies": [each.body for each in listed]})


def unpack_requests(record: ConfigRecord) -> list[RelayRequest]:
    """The requests in a record."""
    heads, bodies = _parts(record, "requests")
    try:
        return [RelayRequest(str(m), str(p), _texts(h), b) for (m, p, h), b in zip(heads, bodies, strict=True)]
    except (TypeError, ValueError) as error:
        raise _malformed("requests", error) from error


def pack_responses(responses: Mapping[str, RelayResponse], more: Mapping[str, str | int]) -> ConfigRecord:
    """Responses by the key of their request, and what else the message says."""
    heads = [[key, each.status, dict(each.headers)] for key, each in responses.items()]
    bodies = [each.body for each in responses.values()]
    return ConfigRecord({"responses": json.dumps(heads), "bodies": bodies, **more})


def unpack_responses(record: ConfigRecord) -> Responses:
    """The responses in a record, by the key of their request."""
    heads, bodies = _parts(record, "responses")
    try:
        return {str(k): RelayResponse(int(str(s)), _texts(h), b) for (k, s, h), b in zip(heads, bodies, strict=True)}
    except (TypeError, ValueError) as error:
        raise _malformed("responses", error) from error


def record_of(message: Message) -> ConfigRecord:
    """The bridge's own record of a message."""
    record = message.content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise WireError(
            f"the message is not from a ServerApp of consilience-flower: it has no record {RECORD!r}; use "
            f"consilience_flower.server_app() or run_federation(grid, context) in the ServerApp",
            code="malformed-message",
        )
    return record


def number_of(record: ConfigRecord, key: str) -> int:
    """A whole number of a record."""
    value = record.get(key)
    if not isinstance(value, int):
        raise _malformed(key, ValueError(f"it is {value!r}"))
    return value


def _parts(record: ConfigRecord, key: str) -> tuple[list[list[object]], list[bytes]]:
    try:
        heads, bodies = json.loads(str(record[key])), record["bodies"]
        if not isinstance(bodies, list) or len(heads) != len(bodies) or any(len(each) != 3 for each in heads):
            raise ValueError("its parts do not belong together")
        if not all(isinstance(each, bytes) for each in bodies):
            raise ValueError("bodies are not bytes")
        return heads, [each for each in bodies if isinstance(each, bytes)]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise _malformed(key, error) from error


def _texts(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        raise TypeError(f"headers are {type(found).__name__}")
    return {str(key): str(value) for key, value in found.items()}


def _malformed(key: str, error: Exception) -> WireError:
    return WireError(f"a Flower message has no {key} of this bridge: {error}; {SAME_VERSION}", code="malformed-message")
