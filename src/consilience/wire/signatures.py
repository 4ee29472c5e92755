"""Signatures of a relay: what it says is signed with an Ed25519 key that its charter names and members keep.

    Consilience-Signature: sig=:BASE64:;epoch=866667103290

A signature is of a text that binds the content to its meaning: see `signed_text`, and docs/protocol.md.
"""

from __future__ import annotations

import base64
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from consilience.errors import ConfigurationError, WireError
from consilience.wire.digests import DIGEST_HEADER, content_digest

SIGNATURE_HEADER = "Consilience-Signature"
RECEIPT, ANSWER, REPLY, STATUS = "receipt", "answer", "reply", "federation"
"""What is signed: the receipt of an upload, an answer, a reply of a moving mean, the status of a federation."""
_HEADER = re.compile(r"sig=:([A-Za-z0-9+/]{86}==):;epoch=([0-9]{1,18})")
_KEY = re.compile(r"ed25519:([A-Za-z0-9+/]{43}=)")


def signed_text(kind: str, federation: str, epoch: int, bound: dict[str, object], digest: str) -> bytes:
    """The text that is signed: lines of a name and a value, in this order, each ended by a line feed.

    bound: what the content belongs to, such as the member and the round of a receipt. digest: the `content_digest`.
    """
    lines = {"consilience-signature": 1, "kind": kind, "federation": federation, "epoch": epoch, **bound}
    lines["content-digest"] = digest
    return "".join(f"{name}: {value}\n" for name, value in lines.items()).encode()


class Signer:
    """Signs what a relay says of one federation. secret: 32 bytes, the private key."""

    def __init__(self, secret: bytes, federation: str) -> None:
        self._key, self._federation = Ed25519PrivateKey.from_private_bytes(secret), federation

    def proof_headers(self, kind: str, epoch: int, bound: dict[str, object], content: bytes) -> dict[str, str]:
        """The headers beside a signed body: its digest and its signature."""
        digest = content_digest(content)
        signature = self._key.sign(signed_text(kind, self._federation, epoch, bound, digest))
        signed = f"sig=:{base64.b64encode(signature).decode()}:;epoch={epoch}"
        return {DIGEST_HEADER: digest, SIGNATURE_HEADER: signed}


def public_key(secret: bytes) -> str:
    """The public key of a private one, as a charter names it."""
    raw = Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return f"ed25519:{base64.b64encode(raw).decode()}"


def decode_base64(text: str) -> bytes:
    """The bytes of a text in base64; refuses with ValueError a text that is not the only one of its bytes."""
    found = base64.b64decode(text, validate=True)
    if base64.b64encode(found).decode() != text:
        raise ValueError("the last character of the base64 has bits that mean nothing, and they are not 0")
    return found


def parse_key(text: str) -> Ed25519PublicKey:
    """A public key from its text."""
    match = _KEY.fullmatch(text)
    try:
        return Ed25519PublicKey.from_public_bytes(decode_base64(match[1]) if match else b"")
    except ValueError:
        raise ConfigurationError(
            f"{text[:80]!r} is not a public key; one is ed25519: with 44 characters, and `consilience relay key` "
            f"prints a relay's, `consilience key` a member's"
        ) from None


def parse_signature(text: str) -> tuple[bytes, int]:
    """The signature in a header's value, and the epoch that it is of."""
    match = _HEADER.fullmatch(text.strip())
    if not match:
        raise WireError(
            f"{SIGNATURE_HEADER} is {text[:120]!r}; it has the form sig=:BASE64:;epoch=N", code="wrong-signature"
        )
    return base64.b64decode(match[1]), int(match[2])


def is_signed(key: Ed25519PublicKey, signature: bytes, text: bytes) -> bool:
    """Whether a text was signed with a key."""
    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True
