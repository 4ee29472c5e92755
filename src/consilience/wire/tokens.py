"""Tokens: who somebody is, and the proof of it. The store keeps only a hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

FORM = re.compile(r"cs1_([0-9a-f]{1,15})_([A-Za-z0-9_-]{43})")


class Token(NamedTuple):
    """A member's number in the store, and the secret that only it knows."""

    member: int
    secret: str

    def __str__(self) -> str:
        return f"cs1_{self.member:x}_{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.member}, ...)"  # a secret has no place in a log

    @property
    def hashed(self) -> bytes:
        """What the store keeps: the secret has 256 random bits, so a plain hash cannot be turned back."""
        return hashlib.sha256(self.secret.encode()).digest()


def new(member: int) -> Token:
    """A token that nobody has seen."""
    return Token(member, secrets.token_urlsafe(32))


def matches(token: Token, kept: bytes) -> bool:
    """Whether this is the token whose hash was kept; takes as long where it is not."""
    return hmac.compare_digest(token.hashed, kept)
