"""The cache folder: downloads, and decoded pixels of image folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.readers.npz import read_arrays
from consilience.errors import DataError

CACHE_VARIABLE = "CONSILIENCE_CACHE"


def cache_folder() -> Path:
    """The folder in CONSILIENCE_CACHE, else the user's cache folder."""
    if variable := os.environ.get(CACHE_VARIABLE):  # set but empty counts as not set
        return Path(variable).expanduser()
    import pooch  # imported late: only a cache needs it, to find the cache folder of the system

    return Path(pooch.os_cache("consilience"))


def cache_key(*parts: Any) -> str:
    """A key for data made from `parts`, which must be JSON values: different parts give a different key."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def load_cached(key: str) -> NDArray[Any] | None:
    """The array saved under this key, or None; a damaged file counts as none."""
    path = _path(key)
    try:
        return read_arrays(path, ["images"])["images"] if path.is_file() else None
    except (DataError, KeyError, OSError):
        return None


def save_cached(key: str, images: NDArray[Any]) -> None:
    """Save an array under a key, atomically; nothing is saved where nothing can be written."""
    path, part = _path(key), ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, images=images)
        os.replace(part, path)
    except OSError:  # no space or no permission: it is decoded again next time
        if part:
            with contextlib.suppress(OSError):
                os.unlink(part)


def _path(key: str) -> Path:
    return cache_folder() / "decoded" / f"{key}.npz"
