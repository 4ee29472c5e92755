"""Reads the body of an upload: no more than is allowed, and only what was sent."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from consilience.errors import WireError
from consilience.relay.rejections import Rejection
from consilience.wire.digests import DIGEST_HEADER, check_digests, parse_digests


async def read_body(request: Request, largest: int, expected: int) -> bytes:
    """The body, of the expected length.

    A declared length above the largest allowed size is refused before reading; else reading stops with the first chunk
    beyond that size. Whether the length is the expected one is checked when all of the body is there, and so is its
    `Content-Digest`, where it has one.
    """
    lines = request.headers.getlist(DIGEST_HEADER)
    digests = parse_digests(", ".join(lines)) if lines else {}
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
    content = bytes(body)
    check_digests(digests, content)
    return content
