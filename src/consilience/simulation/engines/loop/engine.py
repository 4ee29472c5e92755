"""The loop engine: one learner after the other, one thread each, in as many processes as there are cores.

The fastest way on a CPU, for any mixture of architectures, and the readable reference for the stack.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets
from consilience.learner.learner import Learner
from consilience.simulation.engines.cohort import CohortPlan, stacked_shapes
from consilience.simulation.engines.jobs import Done, Job, Receive, StoreAnswers, Work
from consilience.simulation.engines.loop.executor import Hands
from consilience.simulation.engines.loop.shared_memory import Shapes, SharedMemory, plain
from consilience.simulation.engines.loop.worker import assemble
from consilience.simulation.engines.loop.worker_pool import WorkerPool, forget, portable, worker_pool_of
from consilience.simulation.engines.shared_data import data_arrays
from consilience.wire import schema

_JOBS = 16  # into how many jobs a cohort is cut at least, so that every process finds something to do
_ROWS = 16  # at most so many rows a job
_SLOT_BYTES = 2**24  # what the rows of a job may put up together, unless one row alone puts up more


class LoopEngine:
    """Holds the cohorts' state and does jobs on it, in this process or in workers.

    How rows are cut into jobs depends on the cohort alone and never on the number of processes: sums are formed in the
    same order, and bits come out the same.
    """

    name = "loop"

    def __init__(self, plans: list[CohortPlan], data: Dataset, workers: int, own: LocalTestSets | None = None) -> None:
        device = torch.device(plans[0].spec.device)
        self.workers = workers if device.type == "cpu" and workers > 1 and portable(plans) else 0
        self.slots = self.workers * 2 + 2 if self.workers else 1
        learners = [Learner(plan.spec) for plan in plans]
        self.job_rows = [_rows_per_job(plan, learner) for plan, learner in zip(plans, learners, strict=True)]
        arrays = data_arrays(data, own)
        shapes = self._shapes(plans, learners, arrays)
        self._team: WorkerPool | None = None
        if self.workers:
            gc.collect()  # what the last simulation shared is held by modules and hooks that hold each other
            shared_memory = SharedMemory(shapes)
            tensors = shared_memory.tensors
        else:
            tensors = plain(shapes, device)
        for key, array in arrays.items():
            tensors[f"data.{key}"].copy_(torch.from_numpy(array))
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # one thread in any process, so that bits do not depend on their number
        self.hands: Hands = assemble(plans, tensors)
        self.cohorts = self.hands.cohorts
        if self.workers:
            self._team = worker_pool_of(self.workers)
            try:
                self._team.set_up(plans, shared_memory)
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise
            finally:
                shared_memory.close()

    def _shapes(self, plans: list[CohortPlan], learners: list[Learner], data: Mapping[str, NDArray[Any]]) -> Shapes:
        dtype = plans[0].spec.dtype
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            f"data.{key}": (array.shape, dtype if array.dtype.kind == "f" else torch.int64)
            for key, array in data.items()
        }
        for i, (plan, learner) in enumerate(zip(plans, learners, strict=True)):
            stacked = stacked_shapes(learner.template(), len(plan.members))
            shapes |= {f"state.{i}.{k}": s for k, s in stacked.items()}
            lead = (self.slots, self.job_rows[i])
            for name, channel in learner.channels.items():
                slot = {k: (*lead, *s) for k, s in _put_shapes(channel).items()}
                shapes |= {f"slot.{i}.{name}.{k}": (s, dtype) for k, s in slot.items()}
        return shapes

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Done]]:
        """Do jobs and give their results in order; a slot may be overwritten when the next result is asked for."""
        if self._team is None:
            for job in jobs:
                yield job, self.hands.do(job)
            return
        yield from self._team.run(jobs, self.slots)

    def cut(self, kind: type[Job], cohort: int, rows: np.ndarray) -> list[np.ndarray]:
        """Work by the cohort's own measure; tests one by one; answers, which are quick to take, in larger pieces."""
        if not rows.size:
            return []
        hands = max(self.workers, 1)
        size = {Work: self.job_rows[cohort], Receive: min(_ROWS, -(-len(rows) // hands))}.get(kind, 1)
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def learn(self, job: StoreAnswers) -> None:
        """Let every process hear new answers."""
        if self._team is None:
            self.hands.do(job)
        else:
            self._team.tell_all(job)

    @property
    def learners(self) -> list[Learner]:
        """The machinery of each cohort."""
        return self.hands.learners

    @property
    def like(self) -> Tensor:
        """An array of the kind, and in the place, that channels should keep."""
        return self.hands.data.inputs

    @property
    def processes(self) -> list[int]:
        """Process numbers of the workers."""
        return [w.process.pid for w in self._team.workers] if self._team else []

    def contributions(self, job: Work, name: str) -> tuple[dict[str, Tensor], Tensor]:
        """What the rows of a job have put up for an exchange: tensors (rows, ...) and weights."""
        slot, rows = self.hands.slots[job.cohort], len(job.rows)
        found = {k[len(name) + 1 :]: t[job.slot, :rows] for k, t in slot.items() if k.startswith(f"{name}.")}
        return found, found.pop("")

    def state(self) -> dict[str, Tensor]:
        """Every learner's state, for a checkpoint."""
        return {f"{i}.{k}": t for i, c in enumerate(self.cohorts) for k, t in c.state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        for key, tensor in self.state().items():
            tensor.copy_(state[key])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None and self._team is not None:
            forget(self._team)  # it may be in the middle of a job
        torch.set_num_threads(self._threads)


def default_workers() -> int:
    """As many as there are cores to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _put_shapes(channel: schema.Channel) -> dict[str, tuple[int, ...]]:
    """Shapes of one learner's contribution; the weight's name is empty."""
    lead = (channel.keep,) if isinstance(channel, schema.Pool) else ()
    return {k: (*lead, *t.shape) for k, t in channel.tensors.items()} | {"": (*lead, *channel.rows)}


def _rows_per_job(plan: CohortPlan, learner: Learner) -> int:
    shapes = [shape for channel in learner.channels.values() for shape in _put_shapes(channel).values()]
    put = sum(math.prod(shape) * learner.dtype.itemsize for shape in shapes)
    by_memory = _SLOT_BYTES // max(put, 1)
    return max(1, min(_ROWS, len(plan.members) // _JOBS, by_memory))
