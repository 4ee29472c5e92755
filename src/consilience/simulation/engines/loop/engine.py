"""The loop engine: one learner after the other, one thread each, in as many processes as there are cores.

The fastest way on a CPU, for any mixture of architectures, and the readable reference for the stack.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets
from consilience.learner.device import state_device
from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState
from consilience.simulation.engines.answers import AnswerStore
from consilience.simulation.engines.base import Fields
from consilience.simulation.engines.cohort import CohortPlan, Settings
from consilience.simulation.engines.jobs import Job, JobResult, Receive, Work
from consilience.simulation.engines.loop.memory_layout import (
    fill_constants,
    is_constant,
    make_executor,
    shared_shapes,
    upload_values,
)
from consilience.simulation.engines.loop.shared_memory import SharedMemory, private_memory
from consilience.simulation.engines.loop.worker_pool import WorkerPool, discard, portable, worker_pool_of
from consilience.simulation.engines.shared_data import data_arrays

_MIN_JOBS = 16  # the least number of jobs a cohort is split into, so that every process has work
_MAX_ROWS = 16  # of a job
_SLOT_BYTES = 2**24  # the most that the rows of a job upload together, unless one row alone uploads more


class LoopEngine:
    """Holds the learners' states and does jobs on them, in this process or in workers.

    How rows are split into jobs depends on the cohort alone and never on the number of processes: sums are computed in
    the same order, and have the same bits.
    """

    name = "loop"

    def __init__(self, plans: list[CohortPlan], data: Dataset, workers: int, own: LocalTestSets | None = None) -> None:
        device, self.plans = torch.device(plans[0].spec.device), plans
        self.workers = workers if device.type == "cpu" and workers > 1 and portable(plans) else 0
        self.slots = self.workers * 2 + 2 if self.workers else 1
        learners = [Learner(plan.spec) for plan in plans]
        self.job_rows = [rows_per_job(plan, learner) for plan, learner in zip(plans, learners, strict=True)]
        self.answers = AnswerStore([list(each.channels) for each in learners], [len(plan.members) for plan in plans])
        arrays = data_arrays(data, own)
        shapes = shared_shapes(plans, learners, arrays, self.slots, self.job_rows)
        self._pool: WorkerPool | None = None
        if self.workers:
            gc.collect()  # modules and hooks that hold each other still hold the memory of the last simulation
            shared_memory = SharedMemory(shapes)
            tensors = shared_memory.tensors
        else:
            tensors = private_memory(shapes, state_device(device))
            tensors |= {key: tensor.to(device) for key, tensor in tensors.items() if is_constant(key)}
        fill_constants(tensors, learners, arrays)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # one thread in any process, so that bits do not depend on their number
        self._executor = make_executor(plans, tensors, self.answers.batches)
        if self.workers:
            self._pool = worker_pool_of(self.workers)
            try:
                self._pool.set_up(plans, shared_memory)
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise
            finally:
                shared_memory.close()

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, JobResult]]:
        """Do jobs and yield their results in order; a slot may be overwritten when the next result is asked for."""
        if self._pool is None:
            for job in jobs:
                yield job, self._executor.do(job)
            return
        yield from self._pool.run(jobs, self.slots, self.answers.batches)

    def split(self, kind: type[Job], cohort: int, rows: np.ndarray) -> list[np.ndarray]:
        """Rows split into jobs: work in the cohort's job size, tests one by one, and answers in large jobs."""
        if not rows.size:
            return []
        processes = max(self.workers, 1)
        size = {Work: self.job_rows[cohort], Receive: min(_MAX_ROWS, -(-len(rows) // processes))}.get(kind, 1)
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    @property
    def learners(self) -> list[Learner]:
        """The learner of each cohort."""
        return self._executor.learners

    @property
    def example(self) -> Tensor:
        """A tensor of the kind, and on the device, that channels should keep."""
        return self._executor.data.inputs.new_empty(0, device=state_device(self._executor.data.inputs.device))

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [w.process.pid for w in self._pool.workers] if self._pool else []

    def uploads(self, job: Work, name: str) -> tuple[dict[str, Tensor], Tensor]:
        """What the rows of a job upload to an exchange: tensors (rows, ...) and weights."""
        (tensors, weights), rows = self._executor.slots[job.cohort][name], len(job.rows)
        return {key: tensor[job.slot, :rows] for key, tensor in tensors.items()}, weights[job.slot, :rows]

    def read(self, cohort: int, rows: np.ndarray | None = None, fields: Fields | None = None) -> LearnerState:
        """The stacked states of some learners, as a copy; without rows those of all, as views not to be changed."""
        return self._executor.cohorts[cohort].read(rows)

    def write(self, cohort: int, rows: np.ndarray, state: LearnerState) -> None:
        """Replace the states of some learners by those of a stacked state."""
        self._executor.cohorts[cohort].write(rows, state)

    def write_parameters(self, cohort: int, rows: np.ndarray, values: Mapping[str, Tensor]) -> None:
        """Replace parameters of some learners by name: values (rows, ...), or one for all."""
        self._executor.write_parameters(cohort, rows, values)

    def set_settings(self, cohort: int, settings: Settings) -> None:
        """Give every learner of a cohort its own values of these settings."""
        self._executor.cohorts[cohort].set_settings(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None and self._pool is not None:
            discard(self._pool)  # it may be in the middle of a job
        elif self._pool is not None:
            self._pool.release()
        torch.set_num_threads(self._threads)
        for reader in {plan.spec.reader for plan in self.plans}:
            if reader is not None:
                reader.close()


def default_workers() -> int:
    """One worker per available core."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rows_per_job(plan: CohortPlan, learner: Learner) -> int:
    """How many rows of a cohort a job of local work has."""
    by_memory = _SLOT_BYTES // max(upload_values(learner) * learner.dtype.itemsize, 1)
    return max(1, min(_MAX_ROWS, len(plan.members) // _MIN_JOBS, by_memory))
