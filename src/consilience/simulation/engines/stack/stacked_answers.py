"""The answers that the learners of a stack hold, stacked for as many learners as work at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.exchanges.base import Received
from consilience.simulation.engines.answers import Batches, Held

AnswerParts = tuple[dict[str, Tensor], Tensor, Tensor]
"""An answer as a function under `vmap` takes it: tensors, counts, and whether it is fresh."""


class StackedAnswers:
    """Answers of several learners: one for each along the first axis, or, where `shared`, one for all without it."""

    def __init__(self, tensors: dict[str, Tensor], count: Tensor, fresh: Tensor, shared: bool) -> None:
        self.tensors, self.count, self.fresh, self.shared = tensors, count, fresh, shared

    @property
    def parts(self) -> AnswerParts:
        """What a function under `vmap` takes."""
        return self.tensors, self.count, self.fresh

    @property
    def dims(self) -> tuple[dict[str, int | None], int | None, int]:
        """Along which axes the learners are."""
        axis = None if self.shared else 0
        return dict.fromkeys(self.tensors, axis), axis, 0

    def copy_(self, other: StackedAnswers) -> None:
        """Copy another's values, staying in place."""
        mine, theirs = [*self.tensors.values(), self.count], [*(other.tensors[k] for k in self.tensors), other.count]
        torch._foreach_copy_(mine, theirs)
        self.fresh.copy_(other.fresh)

    def part(self, some: slice) -> StackedAnswers:
        """Those of some of the learners, as views."""
        if self.shared:
            return StackedAnswers(self.tensors, self.count, self.fresh[some], shared=True)
        tensors = {name: tensor[some] for name, tensor in self.tensors.items()}
        return StackedAnswers(tensors, self.count[some], self.fresh[some], shared=False)

    def clone(self) -> StackedAnswers:
        """A copy."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return StackedAnswers(tensors, self.count.clone(), self.fresh.clone(), self.shared)


def vmap_answers(answers: Mapping[str, StackedAnswers]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answers by exchange as a function under `vmap` takes them, and along which axes the learners are."""
    return {name: each.parts for name, each in answers.items()}, {name: each.dims for name, each in answers.items()}


def one_received(parts: Mapping[str, AnswerParts]) -> dict[str, Received]:
    """One learner's answers by exchange, inside a function under `vmap`."""
    return {name: Received(*each) for name, each in parts.items()}


def stack_answers(
    batches: Batches, held: Held, names: Iterable[str], device: torch.device
) -> dict[str, StackedAnswers]:
    """The answers of these numbers, one per learner; where a number is -1 there is nothing fresh."""
    return {name: _stacked(batches, held[name], device) for name in names}


def _stacked(batches: Batches, numbers: np.ndarray, device: torch.device) -> StackedAnswers:
    fresh = torch.from_numpy(numbers >= 0).to(device)
    known = np.where(numbers >= 0, numbers, numbers.max())
    firsts = np.fromiter(batches, dtype=np.int64)
    place = np.searchsorted(firsts, known, side="right") - 1  # the batch of each number
    used, position = np.unique(place, return_inverse=True)
    chosen = [batches[int(firsts[i])] for i in used]
    if (known == known[0]).all():
        one = chosen[0][int(known[0] - firsts[used[0]])]
        return StackedAnswers(dict(one.tensors), one.count, fresh, shared=True)
    before = np.cumsum([0, *map(len, chosen)])[:-1]  # answers in the batches joined before each one
    wanted = before[position.reshape(-1)] + known - firsts[place]
    index = torch.from_numpy(wanted).to(device)
    tensors = {k: _selected([b.tensors[k] for b in chosen], index) for k in chosen[0].tensors}
    return StackedAnswers(tensors, _selected([b.count for b in chosen], index), fresh, shared=False)


def _selected(parts: list[Tensor], index: Tensor) -> Tensor:
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).index_select(0, index)
