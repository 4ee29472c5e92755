"""The relay's private keys, as they are stored: each twice, because a lost key cannot be made again."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from consilience.relay.checksums import DamagedRecord
from consilience.relay.table import Row, Table

SIGN = "sign"
"""The purpose of the key that signs receipts and answers: 32 bytes, an Ed25519 private key."""
_COPY = "-copy"
_SIZE = 32


class KeyRecord(NamedTuple):
    """A private key. purpose: what it is for; of each key there is a copy under a second purpose."""

    id: int
    purpose: str
    secret: bytes


class KeyTable(Table):
    """Private keys of the relay, by purpose."""

    name = "keys"

    def get(self, purpose: str = SIGN) -> bytes:
        """A private key; where its record is damaged, the copy of it."""
        for name in (purpose, purpose + _COPY):
            for row in self.select_raw("purpose = ?", (name,)):
                if self.is_sound(row):
                    return bytes(row[2])
        raise DamagedRecord(self.name, f"purpose {purpose!r}")

    def create(self, purpose: str = SIGN, secret: bytes | None = None) -> None:
        """Save a private key, a new random one if none is given, in place of the one for this purpose."""
        secret = secrets.token_bytes(_SIZE) if secret is None else secret
        for name in (purpose, purpose + _COPY):
            self.sql.execute("DELETE FROM keys WHERE purpose = ?", (name,))
            self.write(KeyRecord(self._next_id(), name, secret), new=True)

    def repair(self, on_damage: Callable[[Row, str], None]) -> bool:
        """Write damaged records again from their copies; whether the key that signs is there."""
        rows = list(self.select_raw())
        sound = {row[1]: row[2] for row in rows if self.is_sound(row)}
        for row in rows:
            if not self.is_sound(row):
                on_damage(row, "it is written again from its copy, if that is sound")
                self.delete_row(row)
        names = {name.removesuffix(_COPY) for name in sound}
        for name in names:
            if not {name, name + _COPY} <= sound.keys():
                self.create(name, sound.get(name, sound.get(name + _COPY)))
        return SIGN in names
