"""Marks of what a run was made of, so that a checkpoint is not gone on with by something else of the same shape."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from consilience.config import Config
from consilience.data import Dataset
from consilience.method import Method
from consilience.models import own

_STRIDE = 101  # every so many values of the inputs: enough to notice other data, and quick for any


def marks(data: Dataset, method: Method, config: Config) -> dict[str, str]:
    """A short digest of the data, of the method and of files that make models; others are known by their shapes."""
    arrays: tuple[np.ndarray, ...] = (
        data.targets,
        data.test_targets,
        data.inputs.reshape(-1)[::_STRIDE],
        data.test_inputs.reshape(-1)[::_STRIDE],
        *(() if data.share is None else (data.share,)),
    )
    roles = re.sub(r" at 0x[0-9a-f]+", "", f"{dict(method.roles)} {dict(method.members)}")  # where it lies in memory
    files = [name for name in config.models if own.is_path(name)]
    return {
        "data": _digest(*map(_bytes, arrays)),
        "method": _digest(roles.encode()),
        **({"model": _digest(*(own.digest(name).encode() for name in files))} if files else {}),
    }


def _bytes(array: np.ndarray) -> bytes:
    return f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes()


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
