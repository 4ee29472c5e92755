"""What is wrong when SQLite cannot open, read or write a store, and what to do about it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from consilience.errors import StorageError

_ADVICE = {
    "SQLITE_BUSY": "another program has been writing to it for ten seconds; close that program (a backup tool, "
    "sqlite3) and try again",
    "SQLITE_LOCKED": "another program has it locked; close that program and try again",
    "SQLITE_READONLY": "it cannot be written; give the relay's user the right to write to the file and its folder, and "
    "mount the disk for writing",
    "SQLITE_CANTOPEN": "the file, or the write-ahead log beside it, cannot be opened; give the relay's user the right "
    "to read and write them and their folder",
    "SQLITE_PERM": "the relay's user may not use it; give it the right to read and write the file and its folder",
    "SQLITE_FULL": "the disk is full, and nothing was changed; free some space and try again",
    "SQLITE_IOERR": "the disk cannot be read or written; check the disk and the system's log",
}


def explain(path: Path, error: BaseException) -> StorageError | None:
    """The error for a person, if the file itself may be sound; None if it may be damaged."""
    name = getattr(error, "sqlite_errorname", None) if isinstance(error, sqlite3.Error) else None
    for known, advice in _ADVICE.items():
        if name is not None and name.startswith(known):
            return StorageError(f"{path}: {advice} ({error})")
    return None
