"""Who sends a request: the token of its `Authorization` header."""

from __future__ import annotations

from consilience.relay.rejections import Rejection
from consilience.wire.tokens import FORM, Token


def read_token(authorization: str | None) -> Token:
    """The token of an `Authorization: Bearer` header."""
    if not authorization:
        raise Rejection("no-token", "no token: send `Authorization: Bearer TOKEN`, with the one you were invited with")
    scheme, _, text = authorization.partition(" ")
    found = FORM.fullmatch(text.strip())
    if scheme.lower() != "bearer" or not found:
        raise Rejection("wrong-token", "what was sent is no token; it looks like cs1_..., 48 characters or more")
    return Token(int(found[1], 16), found[2])
