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
_ALIGN = 64  # bytes: a cache line, and the widest vector load


def private_memory(shapes: Shapes, device: torch.device) -> dict[Key, Tensor]:
    """The same tensors in this process's own memory."""
    return {key: torch.zeros(shape, dtype=dtype, device=device) for key, (shape, dtype) in shapes.items()}


class SharedMemory:
    """Tensors in a file without a name: it is gone when the last process that holds it ends, even if it is killed."""

    def __init__(self, shapes: Shapes, fd: int | None = None) -> None:
        self.shapes = dict(shapes)
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in self.shapes.values()]
        self.size = max(sum(_padded(s) for s in sizes), _ALIGN)
        self.fd = _unnamed_file(self.size) if fd is None else fd
        memory = mmap.mmap(self.fd, self.size)
        self.tensors, start = {}, 0
        for (key, (shape, dtype)), size in zip(self.shapes.items(), sizes, strict=True):
            flat = _view(memory, dtype, math.prod(shape), start)
            self.tensors[key] = flat.view(shape)
            start += _padded(size)

    def close(self) -> None:
        """Close the file; the tensors stay valid as long as they are held."""
        os.close(self.fd)


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
