"""What members ask each other, as bytes: here is my message, and which messages do you have that I lack.

    consilience-fetch: 1            the question; then the rounds held of each member, one line each
    charter: SHA-256
    north 4 5 6
    south

Replies are `accepted`, `refused CODE: REASON`, and `messages: SHA-256 of the charter` with messages after it, each
after its length in four bytes. They are not signed; the messages in them are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from consilience.errors import WireError

ACCEPTED = b"accepted"
_FETCH = b"consilience-fetch: 1\n"
_QUESTION = re.compile(r"charter: ([0-9a-f]{64})\n((?:[a-z0-9][a-z0-9-]{0,63}(?: [0-9]{1,16}){0,64}\n)*)")
_REFUSED = re.compile(r"refused ([a-z-]{1,40}): (.{0,2000})", re.DOTALL)
_MESSAGES = re.compile(rb"messages: ([0-9a-f]{64})\n")
_LENGTH = 4
LONGEST_REASON = 1000  # characters


@dataclass(frozen=True)
class FetchRequest:
    """A question for messages: the asker's charter, and the rounds that it holds of each member it asks for."""

    charter: str
    rounds: Mapping[str, Collection[int]]

    def encode(self) -> bytes:
        """The question as bytes."""
        lines = [f"{name}{''.join(f' {r}' for r in sorted(rounds))}\n" for name, rounds in self.rounds.items()]
        return _FETCH + f"charter: {self.charter}\n{''.join(lines)}".encode()


def parse_fetch(request: bytes) -> FetchRequest | None:
    """The question in a request; None where it is a message."""
    if not request.startswith(_FETCH):
        return None
    match = _QUESTION.fullmatch(request[len(_FETCH) :].decode("ascii", errors="replace"))
    if match is None:
        raise WireError(f"{request[:60]!r} is not a question for messages", code="malformed-message")
    lines = [line.split(" ") for line in match[2].splitlines()]
    return FetchRequest(match[1], {name: [int(r) for r in rounds] for name, *rounds in lines})


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
    """Code and reason, where a reply is a refusal."""
    match = _REFUSED.fullmatch(reply.decode(errors="replace"))
    return (match[1], match[2]) if match else None


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
