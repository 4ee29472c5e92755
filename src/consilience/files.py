"""A lock that goes with the process that holds it, however that ends."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from consilience.errors import ConfigurationError


def alone(file: Path, otherwise: str) -> IO[bytes]:
    """Hold a file until it is closed; where another process has it, refused with what to do otherwise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = open(file, "ab")  # noqa: SIM115  # held until it is closed
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # not on Windows
        pass
    except OSError as error:
        lock.close()
        raise ConfigurationError(otherwise) from error
    return lock
