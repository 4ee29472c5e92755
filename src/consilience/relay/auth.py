"""The token in a request's `Authorization` header."""

from __future__ import annotations

from consilience.relay.rejections import Rejection
from consilience.wire.tokens import FORM, Token


def read_token(authorization: str | None) -> Token:
    """The token of an `Authorization: Bearer` header."""
    if not authorization:
        raise Rejection("no-token", "no token; send `Authorization: Bearer TOKEN` with the token of your invitation")
    scheme, _, text = authorization.partition(" ")
    found = FORM.fullmatch(text.strip())
    if scheme.lower() != "bearer" or not found:
        raise Rejection(
            "wrong-token",
            "the Authorization header has no token; a token looks like cs1_... and has 48 characters or more",
        )
    return Token(int(found[1], 16), found[2])
