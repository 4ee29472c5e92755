"""Learners of one role and one architecture, with their states stacked: row i of every tensor is learner i.

The loop engine works on one row after the other, the stack engine on all rows at once; channels, checkpoints and
evaluation see the same arrays either way. Rows are federations x learners: seeds are just more federations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.channels import as_slice
from consilience.config.schedules import Rate, Schedule, value_at
from consilience.learner.batches import LocalWork
from consilience.learner.layout import Layout
from consilience.learner.spec import LearnerSpec
from consilience.learner.state import LearnerState

Settings = Mapping[tuple[str, str], np.ndarray]
"""Settings of which learners have their own values, by owner and field, (rows,) each."""


@dataclass(frozen=True)
class Members:
    """The learners of the rows: each array has one entry per row."""

    federation: np.ndarray
    learner: np.ndarray
    seed: np.ndarray  # the federation's
    start: NDArray[np.int64]  # the learner's samples are index[start:stop]
    stop: NDArray[np.int64]
    even: np.ndarray  # whether all learners of the federation have equally many samples
    index: np.ndarray  # all learners' samples, as positions in the training set
    shared: NDArray[np.bool_] | None = None  # for each of them, whether it may enter uploads; None if all may
    validation: tuple[np.ndarray, ...] | None = None  # positions of each learner's samples held out for validation
    epsilons: NDArray[np.float64] | None = None  # for each of them, its own privacy budget, inf where it has none
    draw_shares: NDArray[np.float64] | None = None  # how often it is drawn, as a share of others; None if all alike

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many samples each row has."""
        return self.stop - self.start

    def samples(self, row: int) -> np.ndarray:
        """Positions of one learner's samples in the training set."""
        return self.index[self.start[row] : self.stop[row]]

    def shareable(self, row: int) -> np.ndarray | None:
        """Which of one learner's samples may enter uploads; None where all may."""
        return None if self.shared is None else self.shared[self.start[row] : self.stop[row]]

    def draw_share(self, row: int) -> np.ndarray | None:
        """How often each of one learner's samples is drawn, as a share of the run's; None where all are alike."""
        return None if self.draw_shares is None else self.draw_shares[self.start[row] : self.stop[row]]

    def with_draw_shares(self, epsilons: NDArray[np.float64], shares: NDArray[np.float64]) -> Members:
        """The members with privacy budgets of single samples, and how often these are drawn."""
        return replace(self, epsilons=epsilons, draw_shares=shares)

    def held_out(self, rows: np.ndarray) -> np.ndarray:
        """Positions of some learners' validation samples, (rows, most of any of them), filled up with -1."""
        assert self.validation is not None
        found = [self.validation[row] for row in rows]
        padded = np.full((len(rows), max(1, *(len(each) for each in found))), -1)
        for place, each in zip(padded, found, strict=True):
            place[: len(each)] = each
        return padded

    def __len__(self) -> int:
        return len(self.learner)


@dataclass(frozen=True)
class CohortPlan:
    """What a cohort is, apart from its state: small, and sent to worker processes."""

    role: str
    spec: LearnerSpec
    members: Members
    work: LocalWork
    parameters: int  # how many a learner computes with, trained or frozen
    settings: Mapping[tuple[str, str], tuple[Rate, ...]] = field(default_factory=dict)
    """Settings that are a learner's own, by owner and field: one number, or a schedule of numbers, per row."""

    def settings_at(self, round_: int) -> dict[tuple[str, str], np.ndarray]:
        """Settings that are a learner's own in a round, by owner and field, (rows,) each."""
        return {key: np.array([value_at(v, round_) for v in values]) for key, values in self.settings.items()}

    @property
    def scheduled(self) -> bool:
        """Whether any of these settings changes with the rounds."""
        return any(isinstance(value, Schedule) for values in self.settings.values() for value in values)


@dataclass
class Cohort:
    """A cohort and its stacked state."""

    plan: CohortPlan
    state: LearnerState

    def read(self, rows: np.ndarray | None) -> LearnerState:
        """The states of some learners; of all of them as views."""
        if rows is None:
            return self.state
        return self.state.select(torch.from_numpy(rows).to(self.state.step.device))

    def write(self, rows: np.ndarray, state: LearnerState) -> None:
        """Replace the states of some learners."""
        mine, where = self.state.flatten(), as_slice(rows)
        for path, tensor in state.flatten().items():
            mine[path][where] = tensor.to(mine[path].device)

    def write_parameters(self, rows: np.ndarray, values: Mapping[str, Tensor], layout: Layout) -> None:
        """Replace parameters of some learners by name: values (rows, ...), or one for all."""
        mine, where = layout.views(self.state.parameters), as_slice(rows)
        for name, value in values.items():
            mine[name][where] = value.to(mine[name].device, mine[name].dtype)

    def set_settings(self, settings: Settings) -> None:
        """Give every learner its own values of these settings; what is too large becomes infinite."""
        for (owner, name), values in settings.items():
            self.state.settings[owner][name].copy_(torch.from_numpy(values))
