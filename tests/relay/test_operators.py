"""Operators: their tokens are made, replaced, removed and expire."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from consilience.errors import ConfigurationError, UnknownName
from consilience.relay.auth import check_operator
from consilience.relay.operators import add_operator, list_operators, remove_operator
from consilience.relay.rejections import Rejection
from consilience.relay.store import Store
from tests.local_relay import MEAN, create_federation


def check(path: Path, token: object) -> str:
    """The operator's name, or the code with which the token is refused."""
    with contextlib.closing(Store(path)) as store:
        try:
            return check_operator(store.operators, f"Bearer {token}").name
        except Rejection as refused:
            return refused.code


def test_operators_are_added_replaced_and_removed(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    path = tmp_path / "relay.db"
    first, other = add_operator(path, "anna"), add_operator(path, "ben", days=1)
    assert (check(path, first), check(path, other)) == ("anna", "ben")
    again = add_operator(path, "anna")
    assert (check(path, first), check(path, again)) == ("wrong-token", "anna")
    assert [each.name for each in list_operators(path)] == ["anna", "ben"]
    remove_operator(path, "anna")
    assert (check(path, again), check(path, other)) == ("wrong-token", "ben")
    assert check(path, stored.tokens[0]) == "wrong-token"  # a member is no operator
    with pytest.raises(UnknownName, match="anna"):
        remove_operator(path, "anna")


def test_tokens_expire_and_bad_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_federation(tmp_path, MEAN)
    path = tmp_path / "relay.db"
    token, now = add_operator(path, "anna", days=2), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1.9 * 86400)
    assert check(path, token) == "anna"
    monkeypatch.setattr(time, "time", lambda: now + 2.1 * 86400)
    assert check(path, token) == "expired"
    with pytest.raises(ConfigurationError, match="more than 0 days"):
        add_operator(path, "ben", days=0)
    with pytest.raises(ConfigurationError, match="operator 'Anna B': a name has lower-case letters"):
        add_operator(path, "Anna B")
