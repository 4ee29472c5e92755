"""The frozen part of a learner's modules: one copy of it serves all learners of a cohort, and all processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from consilience.learner.layout import Layout
from consilience.learner.state import Tensors


class FrozenPart:
    """Named tensors of modules that no state holds, and that may lie in memory that processes share.

    alike: names of tensors that have the values of another one, by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor], alike: Mapping[str, str], channels_last: bool) -> None:
        self._tensors, self._alike = tensors, alike
        kinds: dict[str, dict[str, tuple[int, ...]]] = {}
        for name in (name for name in tensors if name not in alike):
            kinds.setdefault(str(tensors[name].dtype).removeprefix("torch."), {})[name] = tuple(tensors[name].shape)
        self._layouts = {kind: Layout(shapes, channels_last=channels_last) for kind, shapes in kinds.items()}
        self.use(self.flat())

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each vector that `flat` gives."""
        return {kind: ((layout.size,), getattr(torch, kind)) for kind, layout in self._layouts.items()}

    @property
    def nbytes(self) -> int:
        """How many bytes of memory it takes."""
        return sum(size * dtype.itemsize for (size,), dtype in self.shapes.values())

    def addresses(self) -> set[int]:
        """Where its tensors are in memory."""
        return {tensor.data_ptr() for tensor in self._tensors.values()}

    def flat(self) -> Tensors:
        """Its values end to end, by type."""
        return {kind: layout.flat(self._tensors).detach() for kind, layout in self._layouts.items()}

    def use(self, flat: Mapping[str, Tensor]) -> None:
        """Let the modules' tensors be views into vectors such as `flat` gives."""
        views = {
            name: view for kind, layout in self._layouts.items() for name, view in layout.views(flat[kind]).items()
        }
        for name, tensor in self._tensors.items():
            tensor.data = views[self._alike.get(name, name)]
