"""Memory that worker processes share: tensors laid out in one anonymous file."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from consilience.errors import StorageError

Key = tuple[str | int, ...]
"""The key of a tensor."""
Shapes = Mapping[Key, tuple[tuple[int, ...], torch.dtype]]
BY_LEARNER = "state"
"""A key that begins so names a tensor with one row per learner. Each row begins at a multiple of 64 bytes, as a tensor
of its own does: a matrix product may round otherwise where its matrices begin elsewhere, and a learner's bits must not
depend on its row."""
_ALIGN = 64  # bytes: a cache line, and the widest vector load


def private_memory(shapes: Shapes, device: torch.device) -> dict[Key, Tensor]:
    """The same tensors in this process's own memory."""
    return {
        key: _rows(torch.zeros(_count(key, shape, dtype), dtype=dtype, device=device), key, shape)
        for key, (shape, dtype) in shapes.items()
    }


class SharedMemory:
    """Tensors in a file without a name: it is gone when the last process that holds it ends, even if it is killed."""

    def __init__(self, shapes: Shapes, fd: int | None = None) -> None:
        self.shapes = dict(shapes)
        counts = [_count(key, shape, dtype) for key, (shape, dtype) in self.shapes.items()]
        sizes = [count * dtype.itemsize for count, (_, dtype) in zip(counts, self.shapes.values(), strict=True)]
        self.size = max(sum(_padded(s) for s in sizes), _ALIGN)
        self.fd = _unnamed_file(self.size) if fd is None else fd
        memory = mmap.mmap(self.fd, self.size)
        self.tensors, start = {}, 0
        for (key, (shape, dtype)), count, size in zip(self.shapes.items(), counts, sizes, strict=True):
            self.tensors[key] = _rows(_view(memory, dtype, count, start), key, shape)
            start += _padded(size)

    def close(self) -> None:
        """Close the file; the tensors stay valid as long as they are held."""
        os.close(self.fd)


def _by_learner(key: Key, shape: tuple[int, ...]) -> bool:
    return key[0] == BY_LEARNER and len(shape) > 1


def _row(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many numbers the memory of a learner's row holds, with what fills it up."""
    return _padded(math.prod(shape[1:]) * dtype.itemsize) // dtype.itemsize


def _count(key: Key, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many numbers the memory of a tensor holds."""
    return shape[0] * _row(shape, dtype) if _by_learner(key, shape) else math.prod(shape)


def _rows(flat: Tensor, key: Key, shape: tuple[int, ...]) -> Tensor:
    """The tensor in its memory, (count,)."""
    if not _by_learner(key, shape):
        return flat.view(shape)
    return flat.view(shape[0], _row(shape, flat.dtype))[:, : math.prod(shape[1:])].view(shape)


def _view(memory: mmap.mmap, dtype: torch.dtype, count: int, start: int) -> Tensor:
    if not count:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=start)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _unnamed_file(size: int) -> int:
    """In memory where there is room, else on disk; space is claimed now, so that nothing fails half-way."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > size
    with tempfile.TemporaryFile(dir=shared if roomy else None) as file:
        try:
            os.truncate(file.fileno(), size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise StorageError(f"no room for {size / 2**20:.0f} MiB of shared memory: {error.strerror}") from error
        return os.dup(file.fileno())
