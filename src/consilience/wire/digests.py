"""`Content-Digest` (RFC 9530): the hash of a body, beside the body, so that a changed body is not taken for it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from consilience.errors import WireError

DIGEST_HEADER = "Content-Digest"
_CHECKED = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
_MEMBER = re.compile(r"([a-z*][a-z0-9_.*-]*)(?:=(:[A-Za-z0-9+/]*=*:|[^;,\s:][^;,\s]*))?((?:;[^;,]*)*)")
_LONGEST = 2048
Digests = dict[str, bytes]
"""The hashes of a body, by algorithm; only those that are checked."""


def content_digest(body: bytes) -> str:
    """The header's value for a body."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def parse_digests(text: str) -> Digests:
    """The hashes in a header's value; unknown algorithms are left out, and text in another form is refused."""
    found: Digests = {}
    for item in text[: _LONGEST + 1].split(","):
        match = _MEMBER.fullmatch(item.strip(" \t"))
        if not match or len(text) > _LONGEST:
            raise _wrong(f"{DIGEST_HEADER} is {text[:80]!r}; it has the form sha-256=:BASE64:")
        name, value = match[1], match[2] or ""
        if name in _CHECKED:
            found[name] = _decode(name, value)  # of two, the last one counts
    return found


def check_digests(digests: Digests, body: bytes) -> None:
    """Refuse a body that is not the one that was hashed."""
    for name, digest in digests.items():
        if _CHECKED[name](body).digest() != digest:
            raise _wrong(
                f"the body of {len(body)} bytes does not have the {name} of its {DIGEST_HEADER}: it was changed on the "
                f"way; send it again"
            )


def _decode(name: str, value: str) -> bytes:
    try:
        digest = base64.b64decode(value.strip(":"), validate=True) if value.startswith(":") else b""
    except binascii.Error:
        digest = b""
    if len(digest) != _CHECKED[name]().digest_size:
        size = _CHECKED[name]().digest_size
        raise _wrong(f"{DIGEST_HEADER}: {name}={value[:100]} is not the base64 of {size} bytes between two colons")
    return digest


def _wrong(message: str) -> WireError:
    return WireError(message, code="wrong-digest", field=DIGEST_HEADER)
