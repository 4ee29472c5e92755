"""Receiving and testing for a whole stack of learners: the learner's own code, done for all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from consilience.learner.learner import Learner
from consilience.learner.passes import choose, score_sums
from consilience.learner.state import LearnerState
from consilience.simulation.engines.stack.rows import ForAll
from consilience.simulation.engines.stack.stacked_answers import StackedAnswers, one_received, vmap_answers
from consilience.task import AnswerKind


def receive_stacked(
    learner: Learner, state: LearnerState, answers: Mapping[str, StackedAnswers], for_all: ForAll
) -> None:
    """Let new answers change a stacked state, in place."""
    parts, dims = vmap_answers(answers)

    def one(state: dict[str, Any], parts: Any) -> Tensor:
        row = LearnerState.from_dict(state)
        with learner.bound(row, *learner.binding.tensors(row)):
            learner.receive(one_received(parts))
        return row.step  # vmap needs a result

    for_all(one, (0, dims))(state.as_dict(), parts)


@torch.no_grad()
def score_sums_stacked(
    learner: Learner,
    state: LearnerState,
    tests: tuple[Tensor, Tensor],
    answer: AnswerKind,
    stacked: bool,
    samples: int,
    for_all: ForAll,
) -> Tensor:
    """What the score of each learner follows from, (rows, columns), `samples` at a time.

    stacked: whether the tests are each learner's own.
    """
    axis = 0 if stacked else None

    def one(state: dict[str, Any], inputs: Tensor, targets: Tensor) -> Tensor:
        row = LearnerState.from_dict(state)
        with learner.bound(row, *learner.binding.tensors(row)):
            return score_sums(learner, inputs, targets, answer, samples)

    correct: Tensor = for_all(one, (0, axis, axis))(state.as_dict(), *tests)
    return correct


@torch.no_grad()
def choose_stacked(
    learner: Learner, state: LearnerState, held: tuple[Tensor, Tensor], samples: int, for_all: ForAll
) -> dict[str, Tensor]:
    """What objectives choose by the samples that each learner held out, (rows, ...) by name, `samples` at a time."""

    def one(state: dict[str, Any], inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        row = LearnerState.from_dict(state)
        with learner.bound(row, *learner.binding.tensors(row)):
            return choose(learner, inputs, targets, samples)

    chosen: dict[str, Tensor] = for_all(one)(state.as_dict(), *held)
    return chosen
