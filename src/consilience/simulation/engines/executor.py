"""What does the jobs of an engine: each kind of job has a method of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from consilience.learner.learner import Learner
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.inspection import inspect_rows, measure_rows, represent_rows
from consilience.simulation.engines.jobs import (
    Choose,
    Evaluate,
    Inspect,
    Job,
    JobResult,
    Measure,
    Probe,
    Receive,
    Represent,
    Work,
)
from consilience.simulation.engines.probing import probe_rows
from consilience.simulation.engines.shared_data import SharedData


class Executor(ABC):
    """Does jobs on the learners of some cohorts; probes, inspections and measures are the same in all engines."""

    learners: list[Learner]
    cohorts: list[Cohort]
    data: SharedData

    def do(self, job: Job) -> JobResult:
        """Do one job."""
        match job:
            case Work():
                return self.work(job)
            case Receive():
                return self.receive(job)
            case Evaluate():
                return self.evaluate(job)
            case Choose():
                return self.choose(job)
            case Probe():
                return probe_rows(self.learners[job.cohort], self.cohorts[job.cohort], self.data, job)
            case Represent():
                return represent_rows(self.learners[job.cohort], self.cohorts[job.cohort], self.data, job)
            case Inspect():
                return inspect_rows(self.learners[job.cohort], self.cohorts[job.cohort], self.data.test_inputs, job)
            case Measure():
                return measure_rows(self.learners[job.cohort], self.cohorts[job.cohort], self.data, job)

    def write_parameters(self, cohort: int, rows: np.ndarray, values: Mapping[str, Tensor]) -> None:
        """Replace parameters of some learners by name: values (rows, ...), or one for all."""
        self.cohorts[cohort].write_parameters(rows, values, self.learners[cohort].binding.parameters)

    @abstractmethod
    def work(self, job: Work) -> JobResult:
        """Local training, evaluation and uploads."""

    @abstractmethod
    def receive(self, job: Receive) -> JobResult:
        """Let new answers change learners."""

    @abstractmethod
    def evaluate(self, job: Evaluate) -> JobResult:
        """Test learners."""

    @abstractmethod
    def choose(self, job: Choose) -> JobResult:
        """Let objectives choose by what learners held out."""
