"""The token in a request's `Authorization` header: a member's, or an operator's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from consilience.relay.rejections import Rejection
from consilience.relay.tables import MemberRecord, OperatorRecord, OperatorTable
from consilience.wire.tokens import BearerToken, OperatorToken, Token

_Kind = TypeVar("_Kind", bound=BearerToken)


def read_token(authorization: str | None) -> Token:
    """The member's token of an `Authorization: Bearer` header."""
    return _read(authorization, Token, "the token of your invitation")


def read_operator_token(authorization: str | None) -> OperatorToken:
    """The operator's token of an `Authorization: Bearer` header."""
    return _read(authorization, OperatorToken, "a token of `consilience relay operator add`")


def check_member(find: Callable[[int], MemberRecord | None], authorization: str | None) -> MemberRecord:
    """The member whose token it is; looked up at each request, so that a revoked token is refused at once."""
    token = read_token(authorization)
    member = find(token.id)
    current = token.matches(member.token_hash if member else b"")
    if member is None or not (current or token.matches(member.old_token_hash)):
        raise Rejection("wrong-token", "this token is unknown to this relay")
    why = _why_refused(member, current=current)
    if why is not None:
        raise Rejection(*why, member=member.id)
    return member


def _why_refused(member: MemberRecord, *, current: bool) -> tuple[str, str] | None:
    """Code and message if a member's token is not valid any more; current: it is not the one that was replaced."""
    if member.revoked == 1:
        return "revoked", "this token has been revoked; ask the operator of the relay"
    if not current and member.old_expires <= time.time():
        return "expired", "this token was replaced by a newer one; ask the operator of the relay for that one"
    if current and 0 < member.expires <= time.time():
        return "expired", "this token has expired; ask the operator of the relay for a new one"
    return None


def check_operator(operators: OperatorTable, authorization: str | None) -> OperatorRecord:
    """The operator whose token it is; looked up at each request, so that a removed one is refused at once."""
    token = read_operator_token(authorization)
    known = operators.get(token.id)
    if not token.matches(known.token_hash if known else b"") or known is None:
        raise Rejection("wrong-token", "this token is of no operator of this relay")
    if 0 < known.expires <= time.time():
        raise Rejection("expired", "this token has expired; make a new one: consilience relay operator add NAME")
    return known


def _read(authorization: str | None, kind: type[_Kind], which: str) -> _Kind:
    if not authorization:
        raise Rejection("no-token", f"no token; send `Authorization: Bearer TOKEN` with {which}")
    scheme, _, text = authorization.partition(" ")
    token = kind.parse(text.strip())
    if scheme.lower() != "bearer" or token is None:
        raise Rejection(
            "wrong-token",
            f"the Authorization header is not `Bearer TOKEN` with {which}; such a token looks like {kind.prefix}_... "
            f"and has 48 characters or more",
        )
    return token
