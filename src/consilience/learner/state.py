"""The state of a learner: everything that changes while it learns.

One structure serves a single learner and a stacked cohort. In a stacked state every tensor has one more axis, the
first, and row i is learner i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Path = tuple[str, ...]
"""Where a tensor is in a state: the field, and the keys inside it."""


@dataclass
class LearnerState:
    """Parameters, buffers, optimizer state, exchange state, residuals and own settings of a learner, or of a cohort.

    A dictionary without an entry for an exchange means that there is nothing to remember for it.
    """

    parameters: Tensor  # (..., values) all parameters end to end
    buffers: Tensor  # (..., values) all floating-point buffers end to end
    step: Tensor  # (...) steps that the optimizer has taken
    other_buffers: Tensors = field(default_factory=dict)  # by dtype: integer and boolean buffers end to end
    optimizer: Tensors = field(default_factory=dict)  # by slot, each as long as the parameters
    exchange_state: dict[str, Tensors] = field(default_factory=dict)  # by exchange and name
    residuals: dict[str, Tensors] = field(default_factory=dict)  # by exchange and tensor: what encodings rounded away
    objective_state: Tensors = field(default_factory=dict)  # what the objective remembers of the learner's own data
    settings: dict[str, Tensors] = field(default_factory=dict)  # by owner and field: values that are the learner's own

    def __len__(self) -> int:
        """How many learners a stacked state holds."""
        return len(self.step)

    # -- as nested dictionaries, and as a flat one ---------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The same tensors in nested dictionaries, as functions under `vmap` take them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls, nested: Mapping[str, Any]) -> LearnerState:
        """The state with the tensors that `as_dict` gave."""
        return cls(**nested)

    def flatten(self) -> dict[Path, Tensor]:
        """All tensors by their path, always in the same order."""
        return dict(_leaves(self.as_dict(), ()))

    @classmethod
    def unflatten(cls, tensors: Mapping[Path, Tensor]) -> LearnerState:
        """The state with the tensors that `flatten` gave."""
        nested: dict[str, Any] = {}
        for path, tensor in tensors.items():
            inside = nested
            for key in path[:-1]:
                inside = inside.setdefault(key, {})
            inside[path[-1]] = tensor
        return cls(**nested)

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of `flatten`."""
        return list(self.flatten().values())

    # -- whole states --------------------------------------------------------------------------------------------------

    def map(self, change: Callable[[Tensor], Tensor]) -> LearnerState:
        """The state with every tensor changed."""
        return LearnerState(**_mapped(self.as_dict(), change))

    def clone(self) -> LearnerState:
        """A copy."""
        return self.map(Tensor.clone)

    def to(self, device: torch.device) -> LearnerState:
        """The state on a device; tensors that are there already are not copied."""
        return self.map(lambda tensor: tensor.to(device))

    def copy_(self, other: LearnerState) -> None:
        """Copy the values of another state into this one's tensors."""
        theirs = other.flatten()
        for path, tensor in self.flatten().items():
            tensor.copy_(theirs[path])

    # -- rows of a stacked state ---------------------------------------------------------------------------------------

    def row(self, number: int) -> LearnerState:
        """One learner's state, as views."""
        return self.map(lambda stacked: stacked[number])

    def rows(self, some: slice) -> LearnerState:
        """Several learners' states, as views."""
        return self.map(lambda stacked: stacked[some])

    def select(self, rows: Tensor) -> LearnerState:
        """A copy of some learners' states."""
        return self.map(lambda stacked: stacked.index_select(0, rows))

    def replace_rows(self, rows: Tensor, other: LearnerState) -> None:
        """Copy a stacked state of fewer learners into some of the rows; what the other state leaves out stays."""
        mine = self.flatten()
        for path, tensor in other.flatten().items():
            mine[path].index_copy_(0, rows, tensor)

    def stacked_empty(self, rows: int, device: torch.device) -> LearnerState:
        """Uninitialized memory for the states of this many learners, like those of this stacked state."""
        return self.map(lambda stacked: stacked.new_empty((rows, *stacked.shape[1:]), device=device))


def stacked_shapes(template: LearnerState, rows: int) -> dict[Path, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes of the stacked state of `rows` learners like the template."""
    return {path: ((rows, *tensor.shape), tensor.dtype) for path, tensor in template.flatten().items()}


def _leaves(nested: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Tensor]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _mapped(nested: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {key: _mapped(value, change) if isinstance(value, dict) else change(value) for key, value in nested.items()}
