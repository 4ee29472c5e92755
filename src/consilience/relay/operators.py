"""Operators: people with a token that shows the state of the relay, and changes nothing."""

from __future__ import annotations

from pathlib import Path

from consilience.errors import UnknownName
from consilience.relay.admin import check_name, open_store
from consilience.relay.expiry import expiry
from consilience.relay.tables import OperatorRecord
from consilience.wire.tokens import OperatorToken


def add_operator(path: Path, name: str, days: float | None = None) -> OperatorToken:
    """Give an operator a token, in place of the one it had; without days it never expires."""
    check_name("operator", name)
    expires = expiry(days)
    with open_store(path) as store, store.writing():
        known = {each.name: each.id for each in store.operators.all()}
        token = OperatorToken.new(known.get(name) or store.operators.next_id())
        store.operators.write(OperatorRecord(token.id, name, token.hashed, expires))
        store.audit.append("operator-added", name=name)
    return token


def remove_operator(path: Path, name: str) -> None:
    """Remove an operator: its token is refused at once."""
    with open_store(path) as store, store.writing():
        known = {each.name: each for each in store.operators.all()}
        if name not in known:
            raise UnknownName("operator", name, known)
        store.operators.delete_row(known[name])
        store.audit.append("operator-removed", name=name)


def list_operators(path: Path) -> list[OperatorRecord]:
    """Every operator, oldest first."""
    with open_store(path) as store, store.reading():
        return store.operators.all()
