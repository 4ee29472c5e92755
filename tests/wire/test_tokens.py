"""Tokens as text: what is read is what was written, and one kind is never taken for another."""

from __future__ import annotations

import pytest

from consilience.wire.tokens import BearerToken, OperatorToken, Token

KINDS: list[type[BearerToken]] = [Token, OperatorToken]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_token_is_read_again(kind: type[BearerToken]) -> None:
    token = kind.new(171)
    assert str(token).startswith(f"{kind.prefix}_ab_") and kind.parse(str(token)) == token
    assert token.id == 171 and token.secret not in repr(token) and repr(token) == f"{kind.__name__}(171, ...)"
    assert token.matches(token.hashed) and not kind.new(171).matches(token.hashed) and not token.matches(b"")


@pytest.mark.parametrize("kind", KINDS)
def test_another_text_is_no_token(kind: type[BearerToken]) -> None:
    text = str(kind.new(1))
    for wrong in ("", text[:-1], f"{text}a", f" {text}", text.replace("_1_", "_g_"), text.replace("_1_", "__")):
        assert kind.parse(wrong) is None


def test_a_member_is_no_operator() -> None:
    member: BearerToken = Token(1, "a" * 43)
    operator: BearerToken = OperatorToken(1, "a" * 43)
    assert member != operator and str(member) != str(operator)
    assert Token.parse(str(operator)) is None and OperatorToken.parse(str(member)) is None
