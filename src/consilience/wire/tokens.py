"""Tokens: which member sends a request, and the proof of it. The store has only a hash of a token."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

FORM = re.compile(r"cs1_([0-9a-f]{1,15})_([A-Za-z0-9_-]{43})")


class Token(NamedTuple):
    """A member's id in the store, and a secret that only the member has."""

    member: int
    secret: str

    def __str__(self) -> str:
        return f"cs1_{self.member:x}_{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.member}, ...)"  # logs must not show the secret

    @property
    def hashed(self) -> bytes:
        """What is stored: the secret has 256 random bits, so a plain hash cannot be reversed."""
        return hashlib.sha256(self.secret.encode()).digest()


def new_token(member: int) -> Token:
    """A token with a new random secret."""
    return Token(member, secrets.token_urlsafe(32))


def matches(token: Token, stored_hash: bytes) -> bool:
    """Whether this is the token with the stored hash; takes equally long if it is not."""
    return hmac.compare_digest(token.hashed, stored_hash)
