"""When a store was backed up last: the time of an empty file beside it, since a backup does not write to the store."""

from __future__ import annotations

import contextlib
from pathlib import Path


def note_backup(path: Path) -> None:
    """Note that a store has been backed up now; a folder that cannot be written does not fail the backup."""
    with contextlib.suppress(OSError):
        _file(path).touch(mode=0o600)


def last_backup(path: Path) -> int | None:
    """When `consilience relay backup` copied a store last, in seconds since 1970; None if it is not known."""
    try:
        return int(_file(path).stat().st_mtime)
    except OSError:
        return None


def _file(path: Path) -> Path:
    real = path.resolve()
    return real.with_name(f"{real.name}-last-backup")
