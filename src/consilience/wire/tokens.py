"""Tokens: which member or operator sends a request, and the proof of it. The store has only a hash of a token."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import ClassVar, Self

_REST = r"_([0-9a-f]{1,15})_([A-Za-z0-9_-]{43})"


@dataclass(frozen=True)
class BearerToken:
    """Somebody's id in the store, and a secret that only they have; each kind of token is a type of its own."""

    prefix: ClassVar[str]
    """How the text of such a token begins."""
    id: int
    secret: str

    @classmethod
    def new(cls, owner: int) -> Self:
        """A token with a new random secret; owner: an id in the store."""
        return cls(owner, secrets.token_urlsafe(32))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The token of this kind that a text is; None for any other text."""
        found = re.fullmatch(f"{cls.prefix}{_REST}", text)
        return None if found is None else cls(int(found[1], 16), found[2])

    def __str__(self) -> str:
        return f"{self.prefix}_{self.id:x}_{self.secret}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, ...)"  # logs must not show the secret

    @property
    def hashed(self) -> bytes:
        """What is stored: the secret has 256 random bits, so a plain hash cannot be reversed."""
        return hashlib.sha256(self.secret.encode()).digest()

    def matches(self, stored_hash: bytes) -> bool:
        """Whether this is the token with the stored hash; takes equally long if it is not."""
        return hmac.compare_digest(self.hashed, stored_hash)


class Token(BearerToken):
    """A member's token."""

    prefix = "cs1"


class OperatorToken(BearerToken):
    """An operator's token."""

    prefix = "co1"
