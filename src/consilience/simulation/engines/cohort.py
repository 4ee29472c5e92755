"""Learners of one role and one architecture, with their state stacked: row i of every array is learner i.

The loop engine works on one row after the other, the stack engine on all rows at once; channels, checkpoints and
evaluation see the same arrays either way. Rows are federations x learners: seeds are just more federations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.config.schedules import Rate, Schedule, value_at
from consilience.learner.learner import LearnerSpec, Row


@dataclass(frozen=True)
class Members:
    """Who the rows are: each array has one entry a row."""

    federation: np.ndarray
    learner: np.ndarray
    seed: np.ndarray  # the federation's
    start: NDArray[np.int64]  # the learner's samples are index[start:stop]
    stop: NDArray[np.int64]
    even: np.ndarray  # whether all learners of the federation have equally many samples
    index: np.ndarray  # all learners' samples, as positions in the training set
    shared: NDArray[np.bool_] | None = None  # for each of them, whether it may enter what is put up; None if all may

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many samples each row has."""
        return self.stop - self.start

    def __len__(self) -> int:
        return len(self.learner)


@dataclass(frozen=True)
class LocalWork:
    """Local work in a round."""

    batch_size: int
    epochs: int
    least: int  # samples in a batch
    reset: bool  # begin the optimizer anew each round


@dataclass(frozen=True)
class CohortPlan:
    """What a cohort is, apart from its state: small, and sent to worker processes."""

    role: str
    spec: LearnerSpec
    members: Members
    work: LocalWork
    parameters: int  # how many a learner has
    settings: Mapping[str, tuple[Rate, ...]] = field(default_factory=dict)
    """What is a learner's own, by part of the row: one number, or a schedule of them, a row."""

    def settings_at(self, round_: int) -> dict[str, np.ndarray]:
        """What is a learner's own in a round, by part of the row, (rows,)."""
        return {key: np.array([value_at(v, round_) for v in values]) for key, values in self.settings.items()}

    @property
    def scheduled(self) -> bool:
        """Whether any of it changes with the rounds."""
        return any(isinstance(value, Schedule) for values in self.settings.values() for value in values)


@dataclass
class Cohort:
    """A cohort and its stacked state, (rows, ...) each."""

    plan: CohortPlan
    state: dict[str, Tensor]

    def row(self, number: int) -> Row:
        """One learner's state, as views."""
        return {name: stacked[number] for name, stacked in self.state.items()}

    def samples(self, number: int) -> np.ndarray:
        """Where one learner's samples lie in the training set."""
        members = self.plan.members
        return members.index[members.start[number] : members.stop[number]]

    def shared(self, number: int) -> np.ndarray | None:
        """Which of them may enter what one learner puts up; None where all may."""
        members = self.plan.members
        return None if members.shared is None else members.shared[members.start[number] : members.stop[number]]


def stacked_shapes(template: Row, rows: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes of the stacked state of `rows` learners like the template."""
    return {name: ((rows, *t.shape), t.dtype) for name, t in template.items()}
