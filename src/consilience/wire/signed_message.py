"""A message between members without a relay: an upload, signed by the member that made it.

    consilience-message: 1
    federation: wards
    charter: SHA-256 of the charter's text
    member: north
    round: 3
    parts: prototypes, observations;entries=1
    content-digest: sha-256=:BASE64:
    signature: BASE64

    BODY

The signature is of all lines before it, each with its line feed. Nothing but these lines, in this order, is read; the
body follows the empty line, and is the body that a relay would get.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from consilience.errors import WireError
from consilience.wire.digests import content_digest
from consilience.wire.headers import LATEST_ROUND, Parts, format_parts
from consilience.wire.signatures import decode_base64, is_signed

LONGEST_HEAD = 10_000
"""The most bytes of a message before its body."""
_NAME = r"[a-z0-9][a-z0-9-]{0,63}"
_HEAD = re.compile(
    rf"""(consilience-message:\ 1\n
    federation:\ (?P<federation>{_NAME})\n
    charter:\ (?P<charter>[0-9a-f]{{64}})\n
    member:\ (?P<member>{_NAME})\n
    round:\ (?P<round>0|[1-9][0-9]{{0,15}})\n
    parts:\ (?P<parts>[ -~]{{1,8192}})\n
    content-digest:\ (?P<digest>sha-256=:[A-Za-z0-9+/]{{43}}=:)\n)
    signature:\ (?P<signature>[A-Za-z0-9+/]{{86}}==)\n""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class SignedMessage:
    """A member's upload of one round with its signature; `check_signature` says whether it is the member's own.

    header: the parts of the body, as an upload's header writes them. data: the whole message as it travels.
    """

    federation: str
    charter: str
    member: str
    round: int
    header: str
    body: bytes
    data: bytes
    digest: str
    signature: bytes
    signed: bytes

    @cached_property
    def sha256(self) -> str:
        """Identifies the message."""
        return hashlib.sha256(self.data).hexdigest()

    def check_signature(self, key: Ed25519PublicKey) -> None:
        """Refuse a message whose head was not signed with this key, or whose body is not the one that was signed."""
        if not is_signed(key, self.signature, self.signed):
            raise WireError(f"it is not signed with the key that the charter has of {self.member}", code=_SIGNATURE)
        if content_digest(self.body) != self.digest:
            raise WireError(f"its body of {len(self.body)} bytes was changed after it was signed", code="wrong-digest")


_SIGNATURE = "wrong-signature"


def sign_message(
    key: Ed25519PrivateKey, federation: str, charter: str, member: str, round_: int, parts: Parts, body: bytes
) -> SignedMessage:
    """The message of a member's upload; charter: its fingerprint."""
    lines = {
        "consilience-message": 1,
        "federation": federation,
        "charter": charter,
        "member": member,
        "round": round_,
        "parts": format_parts(parts),
        "content-digest": content_digest(body),
    }
    signed = "".join(f"{name}: {value}\n" for name, value in lines.items()).encode()
    signature = base64.b64encode(key.sign(signed)).decode()
    return read_message(signed + f"signature: {signature}\n\n".encode() + body)


def _decode_signature(text: str) -> bytes:
    try:
        return decode_base64(text)
    except ValueError as error:
        raise WireError(f"its signature cannot be read: {error}", code=_SIGNATURE) from error


def read_message(data: bytes) -> SignedMessage:
    """The message in these bytes, of which nothing is checked but its form."""
    head, empty, body = data[: LONGEST_HEAD + 2].partition(b"\n\n")
    match = _HEAD.fullmatch(head.decode("ascii", errors="replace") + "\n") if empty else None
    if match is None or int(match["round"]) > LATEST_ROUND:
        raise WireError(f"{data[:60]!r} is not the start of a message between members", code="malformed-message")
    body = data[len(head) + 2 :]
    return SignedMessage(
        federation=match["federation"],
        charter=match["charter"],
        member=match["member"],
        round=int(match["round"]),
        header=match["parts"],
        body=body,
        data=data,
        digest=match["digest"],
        signature=_decode_signature(match["signature"]),
        signed=match[1].encode(),
    )
