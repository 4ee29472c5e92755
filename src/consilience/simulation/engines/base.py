"""The interface of an engine: it holds the states of all learners, and does jobs on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState
from consilience.simulation.engines.answers import AnswerStore
from consilience.simulation.engines.cohort import CohortPlan, Settings
from consilience.simulation.engines.jobs import Job, JobResult, Work

EngineName = Literal["loop", "stack", "branches"]
Fields = Collection[str]
"""Names of fields of `LearnerState`."""


class Engine(Protocol):
    """One learner after the other, or a thousand in one step: the round sees the same stacked states."""

    name: str
    answers: AnswerStore

    @property
    def plans(self) -> Sequence[CohortPlan]:
        """What each cohort is."""
        ...

    @property
    def learners(self) -> Sequence[Learner]:
        """The learner of each cohort: one for all of its rows."""
        ...

    @property
    def example(self) -> Tensor:
        """A tensor of the kind, and on the device, that channels should keep."""
        ...

    @property
    def processes(self) -> Sequence[int]:
        """Ids of the processes it has started."""
        ...

    def split(self, kind: type[Job], cohort: int, rows: np.ndarray) -> list[np.ndarray]:
        """Rows of a cohort, split into jobs of a kind."""
        ...

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, JobResult]]:
        """Do jobs and yield their results in the order of the jobs."""
        ...

    def uploads(self, job: Work, name: str) -> tuple[dict[str, Tensor], Tensor]:
        """What the rows of a job just done upload to an exchange: tensors (rows, ...) and weights."""
        ...

    def read(self, cohort: int, rows: np.ndarray | None = None, fields: Fields | None = None) -> LearnerState:
        """The stacked states of some learners, as a copy; without rows those of all, as views not to be changed.

        fields: those that are needed, where others may be empty: states may be on another machine.
        """
        ...

    def write(self, cohort: int, rows: np.ndarray, state: LearnerState) -> None:
        """Replace the states of some learners by those of a stacked state."""
        ...

    def write_parameters(self, cohort: int, rows: np.ndarray, values: Mapping[str, Tensor]) -> None:
        """Replace parameters of some learners by name: values (rows, ...), or one for all."""
        ...

    def set_settings(self, cohort: int, settings: Settings) -> None:
        """Give every learner of a cohort its own values of these settings."""
        ...
