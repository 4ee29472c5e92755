"""Files on disk: locks that end with their process, and atomic writes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from consilience.errors import ConfigurationError, StorageError

MEMBER_FOLDER = "peer"
"""Where a member of a federation keeps its side of the exchange, in the folder with its settings and metrics."""
_ATTEMPTS = 5  # to lock a file, 10 ms apart
_RESUME = "free some space or choose another folder; the run can be resumed from its last checkpoint"


def lock_file(file: Path, message: str) -> IO[bytes]:
    """Lock a file until it is unlocked or closed; if it is locked already, a `ConfigurationError` with this message.

    Another process may have the lock, or another part of this one.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(_ATTEMPTS):
        lock = open(file, "ab")  # noqa: SIM115  # locked until it is closed
        try:
            _flock(lock)
        except OSError as error:  # perhaps only `is_locked` of another process, for a moment
            lock.close()
            if attempt == _ATTEMPTS - 1:
                raise ConfigurationError(message) from error
            time.sleep(0.01)
        else:
            if names_file(file, lock):  # else it was removed before it was locked, and nobody else would see the lock
                return lock
            lock.close()
    raise ConfigurationError(f"{file} is removed again and again while it is being locked; stop whatever removes it")


def unlock_file(lock: IO[bytes]) -> None:
    """Unlock a file and close it; also where a process that was forked since then has it open too."""
    if not lock.closed:
        _flock(lock, unlock=True)
        lock.close()


def names_file(path: Path, file: IO[bytes]) -> bool:
    """Whether a path names an open file, and not one that has since taken its place, or none."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(file.fileno()))


def is_locked(file: Path) -> bool:
    """Whether a process has a file locked."""
    try:
        with file.open("rb") as lock:
            _flock(lock, shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _flock(file: IO[bytes], shared: bool = False, unlock: bool = False) -> None:
    """Lock a file at once, or raise OSError; or unlock it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    how = fcntl.LOCK_UN if unlock else fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, how | fcntl.LOCK_NB)


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


def readable_json(content: Any) -> str:
    """JSON for people to read: indented, but a list of plain values on one line."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda row: re.sub(r"\n\s*", " ", row[0]), text)  # not inside text
