"""The protocol as OpenAPI, generated from the same codes that rejections use."""

from __future__ import annotations

from typing import Any

from consilience.relay.rejections import STATUS
from consilience.wire.codec import CODES
from consilience.wire.digests import DIGEST_HEADER
from consilience.wire.headers import ANSWER_HEADER, LATEST_ROUND, UPLOAD_HEADER
from consilience.wire.signatures import SIGNATURE_HEADER

_NUMBER = {"type": "integer", "minimum": 0, "maximum": LATEST_ROUND}
_BODY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_SIGNED = {
    DIGEST_HEADER: {"schema": {"type": "string"}},
    SIGNATURE_HEADER: {"schema": {"type": "string"}, "description": "sig=:BASE64:;epoch=N; see docs/protocol.md"},
}
_PAIR = {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,63}:[0-9]{1,15}$"}


def description() -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "consilience relay",
            "version": "1",
            "description": "Channels for learners that do not share data; see docs/protocol.md.",
        },
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "a member's"},
                "operator": {"type": "http", "scheme": "bearer", "description": "an operator's"},
            },
            "schemas": {
                "Rejection": _rejection(),
                "Receipt": _receipt(),
                "Federation": _federation(),
                "Status": _status(),
            },
        },
        "paths": {
            "/health": {
                "get": {
                    "operationId": "health",
                    "summary": "Whether the relay can write",
                    "security": [],
                    "responses": {
                        "200": _json("It can", {"type": "object"}),
                        "503": _json("Not now", {"type": "object"}),
                    },
                }
            },
            "/ready": {
                "get": {
                    "operationId": "ready",
                    "summary": "Whether members can use the relay now",
                    "security": [],
                    "responses": {
                        "200": _json("They can", {"type": "object"}),
                        "503": _json("Not now, and why", {"type": "object"}),
                    },
                }
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "What the relay counts and measures, for Prometheus",
                    "security": [{"operator": []}],
                    "responses": {
                        "200": {"description": "Prometheus' text format", "content": {"text/plain": {}}},
                        **_rejections(400, 401, 403, 503),
                    },
                }
            },
            "/openapi.json": {
                "get": {
                    "operationId": "openapi",
                    "summary": "This description",
                    "security": [],
                    "responses": {"200": _json("OpenAPI", {"type": "object"})},
                }
            },
            "/v1/federation": {
                "get": {
                    "operationId": "federation",
                    "summary": "The charter, the member that asks, and the federation's progress",
                    "responses": {
                        "200": {**_json("The federation", _schema("Federation")), "headers": _SIGNED},
                        **_rejections(401, 403, 429, 503),
                    },
                }
            },
            "/v1/rounds/{round}": {"put": _upload()},
            **_operator_paths(),
            "/v1/answers": {"get": _answers()},
            "/v1/channels/{channel}/replies/{version}": {"get": _reply()},
            "/v1/public-set": {"get": _public_set(), "put": _upload_public_set()},
            "/v1/events": {
                "get": {
                    "operationId": "events",
                    "summary": "An event after each change",
                    "responses": {
                        "200": {"description": "Server-sent events", "content": {"text/event-stream": {}}},
                        **_rejections(401, 403, 429, 503),
                    },
                }
            },
        },
    }


def _operator_paths() -> dict[str, Any]:
    """What operators ask for, with a token of their own."""
    refused = _rejections(400, 401, 403, 429, 503)
    page = {"description": "HTML", "content": {"text/html": {}}}
    kinds: dict[str, Any] = {"text/css": {}, "text/javascript": {}, "image/svg+xml": {}}
    files = {"description": "The file", "content": kinds}
    stream = {"description": "Server-sent events", "content": {"text/event-stream": {}}}
    return {
        "/operator": {
            "get": {
                "operationId": "operatorPage",
                "summary": "The page that shows the state of the relay; it asks for an operator's token",
                "security": [],
                "responses": {"200": page},
            }
        },
        "/operator/{file}": {
            "get": {
                "operationId": "operatorFile",
                "summary": "The style, scripts and icon of that page",
                "security": [],
                "parameters": [{"name": "file", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": files, **_rejections(404)},
            }
        },
        "/v1/operator/status": {
            "get": {
                "operationId": "operatorStatus",
                "summary": "The state of the relay: federations, members, refusals, the store",
                "security": [{"operator": []}],
                "responses": {"200": _json("The status", _schema("Status")), **refused},
            }
        },
        "/v1/operator/events": {
            "get": {
                "operationId": "operatorEvents",
                "summary": "All of the status, then an event after each change",
                "security": [{"operator": []}],
                "responses": {"200": stream, **refused},
            }
        },
    }


def _upload() -> dict[str, Any]:
    return {
        "operationId": "upload",
        "summary": "One upload of a member for a round; the same upload again gets the same receipt",
        "parameters": [
            {"name": "round", "in": "path", "required": True, "schema": _NUMBER},
            {
                "name": UPLOAD_HEADER,
                "in": "header",
                "required": True,
                "schema": {"type": "string"},
                "description": "What the body holds: CHANNEL;entries=N;version=N;weight=X, separated by commas",
            },
            {
                "name": DIGEST_HEADER,
                "in": "header",
                "schema": {"type": "string"},
                "description": "sha-256=:BASE64: of the body (RFC 9530); checked if it is there",
            },
        ],
        "requestBody": {"required": True, "content": _BODY},
        "responses": {
            "200": {**_json("On disk", _schema("Receipt")), "headers": _SIGNED},
            **_rejections(400, 401, 403, 408, 409, 413, 429, 503, 507),
        },
    }


def _answers() -> dict[str, Any]:
    many = {"type": "array", "items": {"type": "string"}}
    return {
        "operationId": "answers",
        "summary": "One body with the answers of some channels",
        "parameters": [
            {"name": "round", "in": "query", "schema": _NUMBER, "description": "the member's own round"},
            {"name": "channel", "in": "query", "schema": many, "description": "all channels if none is named"},
            {
                "name": "have",
                "in": "query",
                "schema": {"type": "array", "items": _PAIR},
                "description": "versions of moving means that the member has",
            },
            {
                "name": "draw",
                "in": "query",
                "schema": {"type": "array", "items": _PAIR},
                "description": "how many entries of a pool",
            },
            {
                "name": "turn",
                "in": "query",
                "schema": _NUMBER,
                "description": "0, 1, ... for several requests in one round",
            },
            {
                "name": "partner",
                "in": "query",
                "schema": {"type": "array", "items": _NUMBER},
                "description": "members whose uploads alone are wanted, beside one's own; everybody's if none is named",
            },
            {"name": "If-None-Match", "in": "header", "schema": {"type": "string"}},
        ],
        "responses": {
            "200": {
                "description": "The answers",
                "headers": {
                    ANSWER_HEADER: {"schema": {"type": "string"}, "description": "What the body holds"},
                    "ETag": {"schema": {"type": "string"}},
                    **_SIGNED,
                },
                "content": _BODY,
            },
            "304": {"description": "The member has them already"},
            **_rejections(400, 401, 403, 429, 503),
        },
    }


def _reply() -> dict[str, Any]:
    return {
        "operationId": "reply",
        "summary": "By how much the common values of a moving mean moved to become one version",
        "parameters": [
            {"name": "channel", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "version", "in": "path", "required": True, "schema": _NUMBER},
        ],
        "responses": {
            "200": {"description": "The reply", "headers": _SIGNED, "content": _BODY},
            **_rejections(400, 401, 403, 404, 429, 503),
        },
    }


def _public_set() -> dict[str, Any]:
    return {
        "operationId": "public_set",
        "summary": "The samples of the public set, as 32-bit floats",
        "responses": {
            "200": {"description": "The samples; the charter has their SHA-256", "content": _BODY},
            **_rejections(401, 403, 404, 429, 503),
        },
    }


def _upload_public_set() -> dict[str, Any]:
    receipt = {"type": "object", "required": ["sha256", "epoch"]}
    return {
        "operationId": "upload_public_set",
        "summary": "The samples of the public set, from the member that has them",
        "requestBody": {"required": True, "content": _BODY},
        "responses": {
            "200": _json("It is on disk", receipt),
            **_rejections(400, 401, 403, 404, 408, 409, 413, 429, 503, 507),
        },
    }


def _schema(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _rejections(*statuses: int) -> dict[str, Any]:
    """The codes of each status."""
    codes = {status: [code for code, of in STATUS.items() if of == status] for status in statuses}
    codes[400] = [*codes.get(400, ()), *CODES]
    return {str(status): _json(", ".join(codes[status]), _schema("Rejection")) for status in statuses}


def _rejection() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "string", "enum": sorted({*STATUS, *CODES})},
            "message": {"type": "string"},
            "field": {"type": "string"},
        },
    }


def _receipt() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["round", "sha256", "accepted", "refused"],
        "properties": {
            "round": _NUMBER,
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "accepted": {"type": "array", "items": {"type": "string"}},
            "refused": {"type": "object", "additionalProperties": {"type": "string"}},
            "epoch": {"type": "integer"},
            "after": {"type": "integer", "description": "the member's round before this upload"},
            "entry": {"type": "integer", "description": "the number of the upload in the audit trail"},
            "chain": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "the hash of the trail up to it"},
        },
    }


def _federation() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["protocol", "charter", "member", "epoch", "revision", "round", "versions"],
        "properties": {
            "protocol": {"type": "integer"},
            "charter": {"type": "string", "description": "TOML"},
            "member": {"type": "object"},
            "epoch": {"type": "integer"},
            "revision": {"type": "integer"},
            "round": {"type": "integer"},
            "versions": {"type": "object"},
            "expected": {"type": "integer"},
            "waiting": {"type": "object"},
            "rounds": {"type": "object", "description": "with roles: the newest round of each member"},
            "public_set": {"type": "boolean", "description": "with a public set: whether the relay has it"},
        },
    }


def _status() -> dict[str, Any]:
    records = {"type": "array", "items": {"type": "object"}}
    return {
        "type": "object",
        "required": ["time", "relay", "store", "refusals", "federations", "members"],
        "properties": {
            "time": {"type": "integer", "description": "the relay's clock, in seconds since 1970"},
            "relay": {"type": "object", "description": "version, protocol, epoch, epoch_began, started"},
            "store": {
                "type": "object",
                "description": "status, bytes, free_bytes, repairs, last_repairs, last_backup",
            },
            "refusals": {"type": "object", "description": "count, codes, last"},
            "federations": records,
            "members": records,
        },
    }
