"""Some rows of a stack: what work written for one learner needs, and how it is done for all of these rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor
from torch.func import vmap

from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState, Tensors
from consilience.simulation.engines.stack.batched_layers import Layers
from consilience.simulation.engines.stack.stacked_answers import StackedAnswers, vmap_answers


class ForAll(Protocol):
    """A way to do work written for one learner for all rows."""

    def __call__(self, work: Callable[..., Any], in_dims: Any = 0, *, single: bool = False) -> Callable[..., Any]:
        """The work for all rows. in_dims: as `torch.func.vmap` has it. single: whether the work looks at one sample at
        a time, and not at a batch of each learner."""
        ...


def vmapped(work: Callable[..., Any], in_dims: Any = 0, *, single: bool = False) -> Callable[..., Any]:
    """The work for all rows at once."""
    if single:  # Layers() is for one batch of each learner: here vmap takes learners and samples itself
        return vmap(work, in_dims=in_dims, randomness="different")

    def all_rows(*parts: Any) -> Any:
        with Layers():
            return vmap(work, in_dims=in_dims)(*parts)

    return all_rows


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a stack: their states, their own values (such as how many samples each has) and the answers they hold."""

    learner: Learner
    state: LearnerState
    own: Tensors
    answers: Mapping[str, StackedAnswers]
    losses: Tensor  # (rows, loss terms and the share of correct predictions), summed over steps
    for_all: ForAll = vmapped

    def each(self, work: Callable[..., Any], *, single: bool = False) -> Callable[..., Any]:
        """Work written for one learner, done for all rows.

        It gets the learner's state, its own values, the answers it holds, and its part of each further argument.
        """
        answers, dims = vmap_answers(self.answers)

        def all_rows(*parts: Any) -> Any:
            in_dims = (0, 0, dims, *(0 for _ in parts))
            return self.for_all(work, in_dims, single=single)(self.state.as_dict(), self.own, answers, *parts)

        return all_rows

    def part(self, some: slice, for_all: ForAll) -> Rows:
        """Some of the rows, as views; for_all: how work is done for all of these."""
        return replace(
            self,
            for_all=for_all,
            state=self.state.rows(some),
            own={name: value[some] for name, value in self.own.items()},
            answers={name: each.part(some) for name, each in self.answers.items()},
            losses=self.losses[some],
        )
