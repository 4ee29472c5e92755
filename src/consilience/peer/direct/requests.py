"""What members ask each other, as bytes: here is my message, and which messages do you have that I lack.

    consilience-fetch: 1            the question
    federation: wards
    charter: SHA-256
    member: north                   who asks
    to: south                       who is asked, so that nobody can pass the question on
    time: 1767225600                seconds since 1970
    north 4 5 6                     the rounds held of each member, one line each
    south
    signature: BASE64               of all lines before it, with the key of who asks

Replies are `accepted`, `refused CODE: REASON`, and `messages: SHA-256 of the charter` with messages after it, each
after its length in four bytes. They are not signed; the messages in them are.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from consilience.errors import WireError
from consilience.wire.signatures import decode_base64, is_signed

ACCEPTED = b"accepted"
_FETCH = b"consilience-fetch: 1\n"
_NAME = r"[a-z0-9][a-z0-9-]{0,63}"
_QUESTION = re.compile(
    rf"""(consilience-fetch:\ 1\n
    federation:\ (?P<federation>{_NAME})\n
    charter:\ (?P<charter>[0-9a-f]{{64}})\n
    member:\ (?P<member>{_NAME})\n
    to:\ (?P<to>{_NAME})\n
    time:\ (?P<time>[0-9]{{1,16}})\n
    (?P<rounds>(?:{_NAME}(?:\ [0-9]{{1,16}}){{0,64}}\n)*))
    signature:\ (?P<signature>[A-Za-z0-9+/]{{86}}==)\n""",
    re.VERBOSE,
)
_MESSAGES = re.compile(rb"messages: ([0-9a-f]{64})\n")
_LENGTH = 4
LONGEST_REASON = 1000  # characters
_REFUSED = re.compile(rf"refused ([a-z-]{{1,40}}): (.{{0,{LONGEST_REASON}}})", re.DOTALL)
CLOCKS_APART = 300.0
"""Seconds: a question whose time differs by more from the clock of who is asked is refused."""


@dataclass(frozen=True)
class FetchRequest:
    """A question for messages: who asks whom, with which charter, and the rounds held of each member asked for."""

    federation: str
    charter: str
    member: str
    to: str
    rounds: Mapping[str, Collection[int]]
    time: int = 0
    signature: bytes = b""
    signed: bytes = b""

    def sign(self, key: Ed25519PrivateKey) -> bytes:
        """The question as bytes, signed now."""
        names = {n: getattr(self, n) for n in ("federation", "charter", "member", "to")} | {"time": int(time.time())}
        head = "".join(f"{name}: {value}\n" for name, value in names.items())
        lines = [f"{name}{''.join(f' {r}' for r in sorted(rounds))}\n" for name, rounds in self.rounds.items()]
        signed = _FETCH + f"{head}{''.join(lines)}".encode()
        return signed + b"signature: " + base64.b64encode(key.sign(signed)) + b"\n"

    def check(self, keys: Mapping[str, Ed25519PublicKey], federation: str, asked: str) -> None:
        """Refuse a question that no member has signed for this member, and an old one; keys: of all members."""
        if self.member not in keys or not is_signed(keys[self.member], self.signature, self.signed):
            raise WireError(
                "the question is not signed by a member; do all members have the same charter?", code="wrong-signature"
            )
        if (self.federation, self.to) != (federation, asked):
            raise WireError(
                f"the question is for {self.to} in {self.federation!r}, and this is {asked} in {federation!r}",
                code="other-recipient",
            )
        if abs(apart := self.time - time.time()) > CLOCKS_APART:
            raise WireError(
                f"the clock of {self.member} differs by {apart:.0f} s from the one of {asked}; at most "
                f"{CLOCKS_APART:.0f} s are allowed, set both clocks",
                code="wrong-time",
            )


def parse_fetch(request: bytes) -> FetchRequest | None:
    """The question in a request, of which nothing is checked but its form; None where it is a message."""
    if not request.startswith(_FETCH):
        return None
    match = _QUESTION.fullmatch(request.decode("ascii", errors="replace"))
    if match is None:
        raise WireError(f"{request[:60]!r} is not a question for messages", code="malformed-message")
    try:
        signature = decode_base64(match["signature"])
    except ValueError as error:
        raise WireError(f"the question's signature cannot be read: {error}", code="wrong-signature") from error
    lines = [line.split(" ") for line in match["rounds"].splitlines()]
    return FetchRequest(
        **{name: match[name] for name in ("federation", "charter", "member", "to")},
        rounds={name: [int(r) for r in rounds] for name, *rounds in lines},
        time=int(match["time"]),
        signature=signature,
        signed=match[1].encode(),
    )


def encode_messages(charter: str, messages: Iterable[bytes], most: int) -> bytes:
    """The reply with messages, as many as have no more than `most` bytes together; at least one, where there is one."""
    reply = [f"messages: {charter}\n".encode()]
    total = 0
    for message in messages:
        total += _LENGTH + len(message)
        if total > most and len(reply) > 1:
            break
        reply += [len(message).to_bytes(_LENGTH), message]
    return b"".join(reply)


def encode_refusal(code: str, reason: str) -> bytes:
    """The reply to what is refused."""
    return f"refused {code}: {reason[:LONGEST_REASON]}".encode()


def parse_refusal(reply: bytes) -> tuple[str, str] | None:
    """Code and reason, where a reply is a refusal; characters that cannot be printed are replaced, as it is logged."""
    match = _REFUSED.match(reply[: 4 * LONGEST_REASON].decode(errors="replace"))
    if match is None:
        return None
    return match[1], "".join(c if c.isprintable() else "?" for c in match[2])


def parse_messages(reply: bytes) -> tuple[str, list[bytes]]:
    """The charter's fingerprint of whoever replied, and the messages in the reply."""
    match = _MESSAGES.match(reply)
    if match is None:
        raise WireError(f"{reply[:60]!r} is not a reply with messages", code="malformed-message")
    at, messages = match.end(), []
    while at < len(reply):
        length = int.from_bytes(reply[at : at + _LENGTH])
        at += _LENGTH
        if at + length > len(reply):
            raise WireError("a reply ends within a message", code="malformed-message")
        messages.append(reply[at : at + length])
        at += length
    return match[1].decode(), messages
