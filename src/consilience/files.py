"""Files on disk: locks that end with their process, and atomic writes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from consilience.errors import ConfigurationError, StorageError

_RESUME = "free some space or choose another folder; the run can be resumed from its last checkpoint"


def lock_file(file: Path, message: str) -> IO[bytes]:
    """Lock a file until it is closed; if another process has the lock, a `ConfigurationError` with this message."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = open(file, "ab")  # noqa: SIM115  # locked until it is closed
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # not on Windows
        pass
    except OSError as error:
        lock.close()
        raise ConfigurationError(message) from error
    return lock


@contextlib.contextmanager
def report_write_errors(path: Path, hint: str = _RESUME) -> Iterator[None]:
    """Turn errors of the disk into a `StorageError` that names the path."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {hint}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: afterwards it has all of the content, or none if the write fails."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    sync_file(fresh)
    fresh.replace(path)


def sync_file(path: Path) -> None:
    """Wait until a file is on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
