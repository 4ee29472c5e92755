"""Tokens that a backup accepts, and that were revoked or replaced in a store since the backup was made."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import NamedTuple

from consilience.relay.store import Store

_MEMBERS = "SELECT id, name, token_hash FROM members WHERE revoked <> 1"  # of any layout
_OPERATORS = "SELECT id, name, token_hash FROM operators"
_HAS_OPERATORS = "SELECT 1 FROM sqlite_master WHERE name = 'operators'"


class EndedTokens(NamedTuple):
    """Whose tokens they are: names by id."""

    members: dict[int, str]
    operators: dict[int, str]

    @property
    def names(self) -> list[str]:
        """All of them, for people."""
        return [*self.members.values(), *(f"operator {name}" for name in self.operators.values())]


NONE = EndedTokens({}, {})


def tokens_ended_since(backup: Path, path: Path) -> EndedTokens:
    """Tokens that are valid in the backup and not in the store; members that the store never had are not among them."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        known = set(sql.execute("SELECT id, name FROM members"))
        has_operators = bool(sql.execute(_HAS_OPERATORS).fetchone())
        members, operators = _valid(sql, _MEMBERS), _valid(sql, _OPERATORS) if has_operators else {}
    with contextlib.closing(sqlite3.connect(backup)) as sql:
        then, operators_then = _valid(sql, _MEMBERS), _valid(sql, _OPERATORS) if has_operators else {}
    return EndedTokens(
        {key[0]: key[1] for key, token in then.items() if key in known and members.get(key) != token},
        {key[0]: key[1] for key, token in operators_then.items() if operators.get(key) != token},
    )


def members_invited_since(backup: Path, path: Path) -> list[str]:
    """Members that the store accepts and the backup does not know; none if the store cannot be read."""
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
        with contextlib.closing(sqlite3.connect(path)) as sql:
            members = _valid(sql, _MEMBERS)
        with contextlib.closing(sqlite3.connect(backup)) as sql:
            then = set(sql.execute("SELECT id, name FROM members"))
        return [name for number, name in members if (number, name) not in then]
    return []


def _valid(sql: sqlite3.Connection, query: str) -> dict[tuple[int, str], bytes]:
    return {(number, str(name)): token for number, name, token in sql.execute(query)}


def end_again(store: Store, ended: EndedTokens) -> None:
    """Revoke the members and remove the operators, within a transaction of the caller."""
    for number, name in ended.members.items():
        store.members.revoke(number)
        member = store.members.get(number)
        store.audit.append("revoked", member.federation if member else 0, number, name=name)
    for number, name in ended.operators.items():
        store.operators.delete_row((number,))
        store.audit.append("operator-removed", name=name)
