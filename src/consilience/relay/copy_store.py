"""A consistent copy of a store in one file, also while a relay serves it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path


def copy_store(sql: sqlite3.Connection, to: Path) -> Path:
    """A copy of a store in a new file, all of it from one moment, also while a relay serves it."""
    unfinished = to.with_name(f"{to.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    unfinished.touch(mode=0o600)  # it holds all contributions: only the relay's user may read it
    with contextlib.closing(sqlite3.connect(unfinished)) as copy:
        sql.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, which can be moved
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.replace(to)
    return to
