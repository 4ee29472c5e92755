"""Marks of what a run was made of, so that a checkpoint is not gone on with by something else of the same shape."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from consilience.data import Dataset
from consilience.method import Method

_STRIDE = 101  # every so many values of the inputs: enough to notice other data, and quick for any


def marks(data: Dataset, method: Method) -> dict[str, str]:
    """A short digest of the data and one of the method; models are known by the shapes of their weights."""
    arrays: tuple[np.ndarray, ...] = (
        data.targets,
        data.test_targets,
        data.inputs.reshape(-1)[::_STRIDE],
        data.test_inputs.reshape(-1)[::_STRIDE],
    )
    roles = re.sub(r" at 0x[0-9a-f]+", "", f"{dict(method.roles)} {dict(method.members)}")  # where it lies in memory
    return {"data": _digest(*map(_bytes, arrays)), "method": _digest(roles.encode())}


def _bytes(array: np.ndarray) -> bytes:
    return f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes()


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
