"""The stack engine: all learners of an architecture in one step, whatever federation they belong to.

Each architecture is a stack of its own. States and data are on the device; rows are split into groups only where they
do not fit; a group that does not fit either is halved, and the work continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from consilience.channels import as_slice
from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets
from consilience.errors import ConsilienceError
from consilience.kinds import kind_of
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState, stacked_shapes
from consilience.simulation.engines.answers import AnswerStore
from consilience.simulation.engines.base import Fields
from consilience.simulation.engines.cohort import Cohort, CohortPlan, Members, Settings
from consilience.simulation.engines.executor import Executor
from consilience.simulation.engines.job_parts import Uploads, add_uploads
from consilience.simulation.engines.jobs import (
    Choose,
    Evaluate,
    Job,
    JobResult,
    Receive,
    Work,
    non_finite_parameter,
    non_finite_upload,
)
from consilience.simulation.engines.shared_data import data_arrays, on_device
from consilience.simulation.engines.stack.memory_budget import MemoryBudget, free_unused
from consilience.simulation.engines.stack.private_trainer import PrivateStackedStep, PrivateTrainer
from consilience.simulation.engines.stack.rows import ForAll, vmapped
from consilience.simulation.engines.stack.stackable import explain_unstackable
from consilience.simulation.engines.stack.stacked_answers import stack_answers
from consilience.simulation.engines.stack.stacked_passes import choose_stacked, receive_stacked, score_sums_stacked
from consilience.simulation.engines.stack.stacked_step import StackedStep
from consilience.simulation.engines.stack.stacked_trainer import StackedTrainer
from consilience.simulation.engines.stack.trainer_cache import TrainerCache
from consilience.simulation.records.timing import Clock
from consilience.task import AnswerKind

OwnTests = Callable[[slice], tuple[Tensor, Tensor]]
"""Test samples and classes of some rows of a stack, (rows, samples, ...) each."""


class StackEngine(Executor):
    """Holds the learners' states and does jobs on them, a whole stack of learners at a time.

    processes_there: how many processes share the device, each with an engine like this one.
    """

    name = "stack"
    processes: tuple[int, ...] = ()
    for_all: ForAll = staticmethod(vmapped)
    """How work written for one learner is done for all rows, outside of trainers."""
    _explaining: Callable[[Learner], AbstractContextManager[None]] = staticmethod(explain_unstackable)
    _budget = MemoryBudget

    def __init__(
        self, plans: list[CohortPlan], data: Dataset, own: LocalTestSets | None = None, processes_there: int = 1
    ) -> None:
        self.plans, self.device = plans, torch.device(plans[0].spec.device)
        self.learners = [Learner(plan.spec) for plan in plans]
        arrays = data_arrays(data, own)
        self.memory = self._budget(self.learners, plans, arrays, processes_there)
        self.data = on_device(arrays, self.device, plans[0].spec.dtype)
        self.cohorts = [
            Cohort(plan, _zero_state(learner, len(plan.members), self.memory.home))
            for plan, learner in zip(plans, self.learners, strict=True)
        ]
        self.answers = AnswerStore([list(each.channels) for each in self.learners], [len(p.members) for p in plans])
        self.trainers = TrainerCache(self.cohorts, self.memory, self._make_trainer)
        self._uploads: Uploads = {}

    @property
    def example(self) -> Tensor:
        """A tensor of the kind, and on the device, that channels should keep."""
        return self.data.inputs

    def split(self, kind: type[Job], cohort: int, rows: np.ndarray) -> list[np.ndarray]:
        """Rows split into jobs of as many rows as fit at once."""
        size = self.memory.rows[cohort]
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, JobResult]]:
        """Do jobs and yield their results in order; uploads stay until the next result is asked for."""
        for job in jobs:
            with self._explaining(self.learners[job.cohort]):
                result = self.do(job)
            yield job, result

    def uploads(self, job: Work, name: str) -> tuple[dict[str, Tensor], Tensor]:
        """What the rows of a job just done upload to an exchange: tensors (rows, ...) and weights."""
        return self._uploads[name]

    def read(self, cohort: int, rows: np.ndarray | None = None, fields: Fields | None = None) -> LearnerState:
        """The stacked states of some learners, as a copy; without rows those of all, as views not to be changed."""
        return self.cohorts[cohort].read(rows)

    def write(self, cohort: int, rows: np.ndarray, state: LearnerState) -> None:
        """Replace the states of some learners by those of a stacked state."""
        self.cohorts[cohort].write(rows, state)

    def set_settings(self, cohort: int, settings: Settings) -> None:
        """Give every learner of a cohort its own values of these settings."""
        self.cohorts[cohort].set_settings(settings)

    def _make_trainer(self, cohort: int, rows: int, even: bool) -> StackedTrainer:
        """A trainer for so many rows of a cohort. even: whether learners have equally many samples."""
        members, privacy = self.plans[cohort].members, self.learners[cohort].spec.privacy
        private = privacy is not None and bool(privacy.steps)
        kind = PrivateTrainer if private else StackedTrainer
        passes = self.memory.pass_of(cohort, rows, int(members.sizes.max()))
        return kind(self._make_step(cohort, rows, private), self.cohorts[cohort], self.data, rows, even, passes)

    def _make_step(self, cohort: int, rows: int, private: bool) -> StackedStep:
        """How so many rows of a cohort take steps."""
        return (PrivateStackedStep if private else StackedStep)(self.learners[cohort])

    # -- local work ----------------------------------------------------------------------------------------------------

    def work(self, job: Work) -> JobResult:
        """In one trainer, or in several where rows have batches of different widths or do not fit at once."""
        learner, clock = self.learners[job.cohort], Clock(self.device)
        losses = np.zeros((len(job.rows), len(learner.loss_terms) + 1))
        correct = np.zeros((len(job.rows), kind_of(learner.task).columns(learner.task))) if job.evaluate else None
        finite = np.ones((len(job.rows), 1 + len(job.uploads)), dtype=bool)
        self._uploads = {}

        def work(entries: np.ndarray) -> None:
            losses[entries], finite[entries], found = self._work_part(job, entries, clock)
            if correct is not None:
                correct[entries] = found

        groups = _of_one_width(self.plans[job.cohort].members, job.rows)
        parts = [some for group in groups for some in self.split(Work, job.cohort, group)]
        self._run_parts(job.cohort, parts, work)
        return JobResult(losses, correct, _describe_non_finite(job, finite), clock.each(len(job.rows)))

    def _run_parts(self, cohort: int, parts: list[np.ndarray], work: Callable[[np.ndarray], None]) -> None:
        """Do work part by part; a part that does not fit into the memory is done again in halves."""
        waiting = list(parts)
        while waiting:
            entries, fits = waiting.pop(0), True
            try:
                work(entries)
            except torch.OutOfMemoryError:
                fits = False
            if not fits:  # outside of the except block, where nothing refers to the failed work any more
                waiting = self._halved(cohort, entries) + waiting

    def _halved(self, cohort: int, entries: np.ndarray) -> list[np.ndarray]:
        """The same entries in halves, after freeing all memory that can be freed."""
        crowded = len(self.trainers) > 1
        self.trainers.clear()
        free_unused(self.device)
        if crowded:
            return [entries]  # other trainers took the memory
        if len(entries) == 1 and self.memory.pass_rows(cohort, 1) == 1:
            raise ConsilienceError(
                f"one learner of model {self.learners[cohort].task.model!r} does not fit into the memory of "
                f"{self.device}; use smaller batches or a smaller model"
            )
        self.memory.shrink(cohort, -(-len(entries) // 2))
        return self.split(Work, cohort, entries)

    def _work_part(self, job: Work, entries: np.ndarray, clock: Clock) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Losses, whether parameters and each exchange's upload are finite, and correct test samples."""
        cohort, terms = self.cohorts[job.cohort], len(self.learners[job.cohort].loss_terms) + 1
        count, padded = len(entries), self.trainers.padded(job.cohort, entries)
        online = job.online[padded] & (np.arange(len(padded)) < count)
        trainer = self.trainers.get(job.cohort, job.rows[padded])
        held = {name: numbers[padded] for name, numbers in job.held.items()}
        answers = stack_answers(self.answers.batches, held, held, self.device)
        trainer.enter(cohort, job.rows[padded], job.round, answers)
        if job.train:
            trainer.train()
        else:
            trainer.losses.zero_()
        clock.lap("train")
        correct = self._correct(job.cohort, trainer.state.rows(slice(count))) if job.evaluate else torch.zeros(0)
        clock.lap("evaluate")
        names = job.uploads if online.any() else ()
        if names:
            trainer.represent(names)
            clock.lap("represent")
            made = trainer.contribute(names, online)
            mine = {
                name: ({k: t[:count] for k, t in tensors.items()}, w[:count]) for name, (tensors, w) in made.items()
            }
            if count == len(job.rows):
                self._uploads = mine
            else:
                add_uploads(self._uploads, mine, entries, len(job.rows))
        results = trainer.summarize(names)[:count].numpy(force=True)
        trainer.leave(cohort, count)  # last: work that runs out of memory is done again from the old states
        clock.lap("exchange")
        finite = np.ones((count, 1 + len(job.uploads)), dtype=bool)
        finite[:, : 1 + len(names)] = results[:, terms:] > 0
        finite[~online[:count], 1:] = True
        return results[:, :terms], finite, correct.numpy(force=True)

    # -- answers and tests ---------------------------------------------------------------------------------------------

    def receive(self, job: Receive) -> JobResult:
        """Let new answers change the learners of a job, as many at once as fit."""
        cohort = self.cohorts[job.cohort]

        def work(entries: np.ndarray) -> None:
            fresh, rows = {name: numbers[entries] for name, numbers in job.fresh.items()}, job.rows[entries]
            names = [name for name, numbers in fresh.items() if (numbers >= 0).any()]
            answers = stack_answers(self.answers.batches, fresh, names, self.device)
            state = _rows(cohort.state, rows, self.device)
            if state.step.data_ptr() == cohort.state.step[int(rows[0]) :].data_ptr():  # the cohort's own
                state = state.clone()  # until the work is done
            receive_stacked(self.learners[job.cohort], state, answers, self.for_all)
            moved = state.to(self.memory.home)
            cohort.state.replace_rows(torch.from_numpy(rows).to(self.memory.home), moved)

        self._run_parts(job.cohort, self.split(Receive, job.cohort, np.arange(len(job.rows))), work)
        return JobResult()

    def evaluate(self, job: Evaluate) -> JobResult:
        """Test the learners of a job, as many at once as fit."""
        clock, members = Clock(self.device), self.plans[job.cohort].members
        task = self.learners[job.cohort].task
        correct = np.zeros((len(job.rows), kind_of(task).columns(task)))

        def work(entries: np.ndarray) -> None:
            rows = job.rows[entries]
            state = _rows(self.cohorts[job.cohort].state, rows, self.device)
            tests: OwnTests | None = None
            if job.tests == "validation":
                held = members.held_out(rows)
                tests = lambda some: self.data.held_out(held[some])  # noqa: E731
            elif job.tests == "own":
                numbers = torch.from_numpy(members.learner[rows]).to(self.device)
                tests = lambda some: self.data.tests(numbers[some])  # noqa: E731
            correct[entries] = self._correct(job.cohort, state, tests, job.answer).numpy(force=True)

        self._run_parts(job.cohort, self.split(Evaluate, job.cohort, np.arange(len(job.rows))), work)
        clock.lap("evaluate")
        return JobResult(correct=correct, seconds=clock.each(len(job.rows)))

    def choose(self, job: Choose) -> JobResult:
        """Let the learners of a job choose by what they held out, as many at once as fit."""
        members = self.plans[job.cohort].members

        def work(entries: np.ndarray) -> None:
            cohort, most = self.cohorts[job.cohort], members.held_out(job.rows[entries]).shape[1]
            together, samples = self.memory.pass_of(job.cohort, len(entries), most)
            for i in range(0, len(entries), together):
                rows = job.rows[entries[i : i + together]]
                state = _rows(cohort.state, rows, self.device)
                held = self.data.held_out(members.held_out(rows))
                chosen = choose_stacked(self.learners[job.cohort], state, held, samples, self.for_all)
                at = torch.from_numpy(rows).to(self.memory.home)
                for name, value in chosen.items():
                    cohort.state.objective_state[name].index_copy_(0, at, value.to(self.memory.home))

        self._run_parts(job.cohort, self.split(Choose, job.cohort, np.arange(len(job.rows))), work)
        return JobResult()

    def _correct(
        self, cohort: int, state: LearnerState, own: OwnTests | None = None, answer: AnswerKind = "common"
    ) -> Tensor:
        """What scores follow from, (rows, columns); few enough rows at once that each sees enough samples.

        own: the test samples of some of the rows, where each is tested on its own.
        """
        rows, samples = self.memory.pass_of(cohort, len(state))
        found = []
        for i in range(0, len(state), rows):
            some = slice(i, i + rows)
            part, tests = state.rows(some), self.data.tests() if own is None else own(some)
            own_tests = own is not None
            found.append(
                score_sums_stacked(self.learners[cohort], part, tests, answer, own_tests, samples, self.for_all)
            )
        return torch.cat(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Free all memory on the device: the next run plans with what is free."""
        self.trainers.clear()
        self.answers.batches.clear()
        self._uploads, self.cohorts[:] = {}, []
        del self.data, self.trainers
        if self.device.type == "cuda":
            free_unused(self.device)


def _of_one_width(members: Members, rows: np.ndarray) -> list[np.ndarray]:
    """Entries whose batches have one width at every step, and so can be in one stack."""
    kinds = np.where(members.even[rows], members.sizes[rows], 0)
    return [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]


def _rows(state: LearnerState, rows: np.ndarray, device: torch.device) -> LearnerState:
    """The states of some rows on a device: the cohort's own tensors where these are there, and rows are in one piece.

    Without the optimizer's state and residuals, which only training and uploads need.
    """
    state, where = replace(state, optimizer={}, residuals={}), as_slice(rows)
    if isinstance(where, slice):
        return state.rows(where).to(device)
    return state.select(torch.from_numpy(where).to(state.step.device)).to(device)


def _zero_state(learner: Learner, rows: int, device: torch.device) -> LearnerState:
    shapes = stacked_shapes(template_state(learner), rows)
    return LearnerState.unflatten(
        {path: torch.zeros(shape, dtype=dtype, device=device) for path, (shape, dtype) in shapes.items()}
    )


def _describe_non_finite(job: Work, finite: np.ndarray) -> dict[int, str]:
    """By entry of the job, what is NaN or infinite."""
    found = {}
    for i in np.flatnonzero(~finite.all(1)).tolist():
        wrong = [name for name, fine in zip(job.uploads, finite[i, 1:], strict=True) if not fine]
        if job.train and not finite[i, 0]:
            found[i] = non_finite_parameter()
        elif wrong:
            found[i] = non_finite_upload(wrong[0])
    return found
