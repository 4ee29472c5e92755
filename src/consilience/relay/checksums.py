"""Checksums of stored records: a record is used only if it is the one that was written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from consilience.errors import StorageError

SIZE = 16
"""Bytes of a checksum."""
_LONG = 256


class DamagedRecord(StorageError):
    """A stored record whose checksum does not match."""

    def __init__(self, table: str, key: str) -> None:
        super().__init__(
            f"the store is damaged: {table}, {key} is not what was written; `consilience relay verify` lists all "
            f"damage, and a relay that serves the store repairs it"
        )
        self.table, self.key = table, key


def checksum(table: str, values: Sequence[Any]) -> bytes:
    """A checksum of a record: of its table, and of each value with its type.

    `repr` writes different values differently, and numbers, texts and bytes never alike. Long bytes stand there as
    their length and SHA-256, which processors compute faster than BLAKE2.
    """
    content = repr((table, *[_short(value) if type(value) is bytes else value for value in values]))
    return hashlib.blake2b(content.encode("utf-8", "surrogateescape"), digest_size=SIZE).digest()


def _short(value: bytes) -> object:
    return value if len(value) <= _LONG else ("SHA-256", len(value), hashlib.sha256(value).digest())


def decode_text(raw: bytes) -> str:
    """Text as it is stored; bytes that are not UTF-8 are kept, so that their record is found to be damaged."""
    return raw.decode("utf-8", "surrogateescape")
