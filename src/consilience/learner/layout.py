"""Named tensors end to end in one flat vector, so that a whole model is one row of a matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The positions of named tensors in the flat vector.

    channels_last: kernels of convolutions have their channels innermost, which is fastest on a CPU.
    """

    shapes: Mapping[str, tuple[int, ...]]
    channels_last: bool = False

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(math.prod(s) for s in self.shapes.values())

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The named tensors as views into the flat vector, or into a stack of them (..., size)."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            views[name] = self._view(flat[..., start:stop], shape)
            start = stop
        return views

    def _view(self, part: Tensor, shape: tuple[int, ...]) -> Tensor:
        lead = part.shape[:-1]
        if not self.channels_last or len(shape) != 4:
            return part.view((*lead, *shape))
        outputs, inputs, height, width = shape
        return part.view((*lead, outputs, height, width, inputs)).movedim(-1, -3)

    def _flatten(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        lead = tensor.shape[: tensor.ndim - len(shape)]
        if self.channels_last and len(shape) == 4:
            tensor = tensor.movedim(-3, -1)
        return tensor.reshape((*lead, math.prod(shape)))

    def flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The named tensors end to end: one of each, or a stack of each (..., *shape)."""
        parts = [self._flatten(tensors[name], shape) for name, shape in self.shapes.items()]
        return torch.cat(parts, dim=-1) if parts else torch.empty(0)

    def mask(self, names: set[str]) -> Tensor:
        """True at the positions of the tensors with these names."""
        parts = [torch.full((math.prod(s),), n in names) for n, s in self.shapes.items()]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.bool)
