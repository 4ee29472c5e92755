"""How a relay's store is: whether it can be written, its size, the disk's room, repairs and the last backup."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from consilience.relay.backup_time import last_backup
from consilience.relay.writer import Writer

_REPAIRS = 10  # the newest ones that are shown


def writer_state(writer: Writer) -> str:
    """Whether uploads can be written: ok, or why not."""
    if not writer.alive:
        return "stopping"
    if writer.fence.lost:
        return "taken over"
    if writer.failing:
        return "disk full" if writer.full else "cannot write"
    return "ok"


def store_health(path: Path, writer: Writer) -> dict[str, Any]:
    """The health of a store that a writer serves."""
    repairs = list(writer.loaded.damage)
    return {
        "status": writer_state(writer),
        "bytes": store_size(path),
        "free_bytes": shutil.disk_usage(path.absolute().parent).free,
        "repairs": len(repairs),
        "last_repairs": repairs[-_REPAIRS:],
        "last_backup": last_backup(path),
    }


def store_size(path: Path) -> int:
    """Bytes of a store and its write-ahead log."""
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
