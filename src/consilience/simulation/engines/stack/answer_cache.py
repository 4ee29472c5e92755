"""The answers that a stack of learners holds, laid side by side for as many of them as work at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.channels import Answer
from consilience.exchanges.base import Received
from consilience.simulation.engines.jobs import Held, StoreAnswers


class Stacked:
    """Answers of several learners: one for each along the first axis, or, where `shared`, one for all without it."""

    def __init__(self, tensors: dict[str, Tensor], count: Tensor, fresh: Tensor, shared: bool) -> None:
        self.tensors, self.count, self.fresh, self.shared = tensors, count, fresh, shared

    @property
    def parts(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """What a vmapped function takes."""
        return self.tensors, self.count, self.fresh

    @property
    def dims(self) -> tuple[dict[str, int | None], int | None, int]:
        """Along which axes the learners lie there."""
        axis = None if self.shared else 0
        return dict.fromkeys(self.tensors, axis), axis, 0

    def copy_(self, other: Stacked) -> None:
        """Take another's values, staying in place."""
        mine, theirs = [*self.tensors.values(), self.count], [*(other.tensors[k] for k in self.tensors), other.count]
        torch._foreach_copy_(mine, theirs)
        self.fresh.copy_(other.fresh)

    def clone(self) -> Stacked:
        """The same in a place of its own."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return Stacked(tensors, self.count.clone(), self.fresh.clone(), self.shared)


def side_by_side(held: Mapping[str, Stacked]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answers by exchange as a vmapped function takes them, and along which axes the learners lie there."""
    return {name: s.parts for name, s in held.items()}, {name: s.dims for name, s in held.items()}


def received_of(parts: tuple[dict[str, Tensor], Tensor, Tensor]) -> Received:
    """One learner's answer, inside a vmapped function."""
    return Received(*parts)


class AnswerCache:
    """Batches of answers by number."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.batches: dict[int, Answer] = {}

    def learn(self, job: StoreAnswers) -> None:
        """Hear new answers, and forget old ones."""
        self.batches |= job.answers
        for first in job.forget:
            self.batches.pop(first, None)

    def of(self, held: Held, names: Iterable[str]) -> dict[str, Stacked]:
        """The answers of those numbers, one a learner; where a number is -1 there is nothing fresh."""
        return {name: self._stacked(held[name]) for name in names}

    def _stacked(self, numbers: np.ndarray) -> Stacked:
        fresh = torch.from_numpy(numbers >= 0).to(self.device)
        known = np.where(numbers >= 0, numbers, numbers.max())
        firsts = np.fromiter(self.batches, dtype=np.int64)
        place = np.searchsorted(firsts, known, side="right") - 1  # which batch each number lies in
        used, position = np.unique(place, return_inverse=True)
        batches = [self.batches[int(firsts[i])] for i in used]
        if (known == known[0]).all():
            one = batches[0][int(known[0] - firsts[used[0]])]
            return Stacked(dict(one.tensors), one.count, fresh, shared=True)
        before = np.cumsum([0, *map(len, batches)])[:-1]  # answers in the batches joined before each one
        wanted = before[position.reshape(-1)] + known - firsts[place]
        index = torch.from_numpy(wanted).to(self.device)
        tensors = {k: _taken([b.tensors[k] for b in batches], index) for k in batches[0].tensors}
        return Stacked(tensors, _taken([b.count for b in batches], index), fresh, shared=False)


def _taken(parts: list[Tensor], index: Tensor) -> Tensor:
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).index_select(0, index)
