"""One folder for what is slow to get: downloads, and the decoded pixels of image folders."""

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
    """The folder in CONSILIENCE_CACHE, else the user's own for caches."""
    if variable := os.environ.get(CACHE_VARIABLE):  # set but empty counts as not set
        return Path(variable).expanduser()
    import pooch  # imported late: it knows where caches lie on each system, and only a cache needs that

    return Path(pooch.os_cache("consilience"))


def cache_key(*parts: Any) -> str:
    """A name for what was made of `parts`, which JSON must be able to write: other parts, another name."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def load_cached(key: str) -> NDArray[Any] | None:
    """What was remembered under this key, or None: a damaged file counts as none."""
    path = _place(key)
    try:
        return read_arrays(path, ["images"])["images"] if path.is_file() else None
    except (DataError, KeyError, OSError):
        return None


def save_cached(key: str, images: NDArray[Any]) -> None:
    """Keep an array under a key, whole or not at all; where nothing can be written, nothing is kept."""
    path, part = _place(key), ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, images=images)
        os.replace(part, path)
    except OSError:  # no space, no permission: the next time will take as long as this time
        if part:
            with contextlib.suppress(OSError):
                os.unlink(part)


def _place(key: str) -> Path:
    return cache_folder() / "decoded" / f"{key}.npz"
