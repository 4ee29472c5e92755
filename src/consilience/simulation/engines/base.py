"""What an engine is: it holds the cohorts' state and does jobs on it. How is its own affair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from consilience.learner.learner import Learner
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.jobs import Done, Job, StoreAnswers, Work


class Engine(Protocol):
    """One learner after the other, or a thousand in one step: the round sees the same stacked arrays."""

    name: str
    cohorts: list[Cohort]

    @property
    def learners(self) -> Sequence[Learner]:
        """The machinery of each cohort."""
        ...

    @property
    def like(self) -> Tensor:
        """An array of the kind, and in the place, that channels should keep."""
        ...

    def cut(self, kind: type[Job], cohort: int, rows: np.ndarray) -> list[np.ndarray]:
        """Some rows of a cohort, cut into jobs of a kind."""
        ...

    @property
    def processes(self) -> Sequence[int]:
        """Numbers of the processes it has started."""
        ...

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Done]]:
        """Do jobs and give their results in the order of the jobs."""
        ...

    def learn(self, job: StoreAnswers) -> None:
        """Hear new answers."""
        ...

    def contributions(self, job: Work, name: str) -> tuple[dict[str, Tensor], Tensor]:
        """What the rows of a job just done have put up for an exchange: tensors (rows, ...) and weights."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Every learner's state, for a checkpoint."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        ...
