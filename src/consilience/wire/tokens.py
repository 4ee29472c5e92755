"""Tokens: which member or operator sends a request, and the proof of it. The store has only a hash of a token."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

_REST = r"_([0-9a-f]{1,15})_([A-Za-z0-9_-]{43})"
FORM = re.compile(f"cs1{_REST}")
OPERATOR_FORM = re.compile(f"co1{_REST}")


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
        return _hash(self.secret)


class OperatorToken(NamedTuple):
    """An operator's id in the store, and a secret that only the operator has."""

    operator: int
    secret: str

    def __str__(self) -> str:
        return f"co1_{self.operator:x}_{self.secret}"

    def __repr__(self) -> str:
        return f"OperatorToken({self.operator}, ...)"  # logs must not show the secret

    @property
    def hashed(self) -> bytes:
        """What is stored."""
        return _hash(self.secret)


def new_token(member: int) -> Token:
    """A token with a new random secret."""
    return Token(member, secrets.token_urlsafe(32))


def new_operator_token(operator: int) -> OperatorToken:
    """An operator's token with a new random secret."""
    return OperatorToken(operator, secrets.token_urlsafe(32))


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def matches(token: Token | OperatorToken, stored_hash: bytes) -> bool:
    """Whether this is the token with the stored hash; takes equally long if it is not."""
    return hmac.compare_digest(token.hashed, stored_hash)
