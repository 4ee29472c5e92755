"""Does jobs one learner after the other, in this process or in a worker: jobs in, small results out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.exchanges.base import Contribution, Received
from consilience.learner.batches import LearnerKey
from consilience.learner.device import has_float64
from consilience.learner.learner import Learner
from consilience.learner.session import LearnerSession, LocalSamples, is_finite
from consilience.simulation.engines.answers import Batches, received
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.executor import Executor
from consilience.simulation.engines.jobs import (
    Choose,
    Evaluate,
    JobResult,
    Receive,
    Work,
    non_finite_parameter,
    non_finite_upload,
)
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.records.timing import Clock

UploadSlot = Mapping[str, tuple[dict[str, Tensor], Tensor]]
"""Memory for what the rows of a job upload, by exchange: tensors (slots, rows, ...) and weights."""


@dataclass
class RowResult:
    """The result of one learner's local work."""

    losses: np.ndarray
    correct: np.ndarray | None
    non_finite: str
    seconds: Mapping[str, float]


class LocalExecutor(Executor):
    """Runs the sessions of learners one after the other, with one thread.

    batches: the answers that learners hold; see `AnswerStore`.
    """

    def __init__(self, cohorts: list[Cohort], data: SharedData, slots: list[UploadSlot], batches: Batches) -> None:
        self.cohorts, self.data, self.slots, self.batches = cohorts, data, slots, batches
        self.learners = [Learner(c.plan.spec) for c in cohorts]

    def _session(self, cohort_number: int, row: int) -> LearnerSession:
        cohort = self.cohorts[cohort_number]
        members, data = cohort.plan.members, self.data
        key = LearnerKey(int(members.seed[row]), int(members.learner[row]))
        samples = LocalSamples(
            data.inputs,
            data.targets,
            members.samples(row),
            members.shareable(row),
            bool(members.even[row]),
            members.draw_share(row),
        )
        state = cohort.state.row(row)
        if not has_float64(data.inputs.device):
            state = state.to(data.inputs.device)
        return LearnerSession(self.learners[cohort_number], state, key, samples, cohort.plan.work)

    def _keep(self, cohort_number: int, row: int, session: LearnerSession) -> None:
        """Copy a row back, where states are kept in other memory than the device's."""
        if not has_float64(self.data.inputs.device):
            self.cohorts[cohort_number].state.row(row).copy_(session.state)

    def _received(self, number: int) -> Received:
        """An answer by its number, on the device."""
        found, device = received(self.batches, number), self.data.inputs.device
        if has_float64(device):
            return found
        single = torch.float32 if found.count.dtype == torch.float64 else found.count.dtype
        tensors = {name: tensor.to(device) for name, tensor in found.tensors.items()}
        return Received(tensors, found.count.to(single).to(device), found.fresh.to(device))

    def work(self, job: Work) -> JobResult:
        """Local steps, tests and uploads, one learner after the other."""
        done = [self._work_row(job, i) for i in range(len(job.rows))]
        return JobResult(
            losses=np.stack([each.losses for each in done]),
            correct=np.stack([each.correct for each in done if each.correct is not None]) if job.evaluate else None,
            non_finite={i: each.non_finite for i, each in enumerate(done) if each.non_finite},
            seconds={phase: np.array([each.seconds[phase] for each in done]) for phase in done[0].seconds},
        )

    def _work_row(self, job: Work, i: int) -> RowResult:
        """Local steps, one pass for representations, contribute and encode, for entry i of a job."""
        session = self._session(job.cohort, int(job.rows[i]))
        held = {name: self._received(int(numbers[i])) for name, numbers in job.held.items()}
        clock, correct, wrong = Clock(self.data.inputs.device), None, ""
        losses = torch.zeros(len(session.learner.loss_terms) + 1)
        if job.train:
            losses = session.train(job.round, held)
        clock.lap("train")
        if job.evaluate:
            correct = session.evaluate(*self.data.tests()).numpy(force=True)
        clock.lap("evaluate")
        if job.uploads and job.online[i]:
            uploads = session.upload(job.round, {name: held[name] for name in job.uploads}, clock.lap)
            bad = [name for name, upload in uploads.items() if not self._write(job, i, name, upload)]
            wrong = non_finite_upload(bad[0]) if bad else ""
        if job.train and not session.has_finite_parameters():
            wrong = non_finite_parameter()
        self._keep(job.cohort, int(job.rows[i]), session)
        clock.lap("exchange")
        return RowResult(losses.numpy(force=True), correct, wrong, clock.laps)

    def _write(self, job: Work, i: int, name: str, upload: Contribution) -> bool:
        """Write an upload into the job's slot; False where a value is NaN or infinite."""
        tensors, weights = self.slots[job.cohort][name]
        for key, value in upload.tensors.items():
            tensors[key][job.slot, i].copy_(value)
        weights[job.slot, i].copy_(upload.weight)
        return is_finite(upload)

    def receive(self, job: Receive) -> JobResult:
        """Let new answers change learners, one after the other."""
        for i, row in enumerate(job.rows):
            session = self._session(job.cohort, int(row))
            new = {name: int(numbers[i]) for name, numbers in job.fresh.items() if numbers[i] >= 0}
            session.receive({name: self._received(number) for name, number in new.items()})
            self._keep(job.cohort, int(row), session)
        return JobResult()

    def evaluate(self, job: Evaluate) -> JobResult:
        """Test learners one after the other."""
        clock, correct, members = Clock(self.data.inputs.device), [], self.cohorts[job.cohort].plan.members
        for row in job.rows:
            if job.tests == "validation":
                tests = self.data.held_out(members.held_out(np.array([row]))[0])
            else:
                tests = self.data.tests(int(members.learner[row]) if job.tests == "own" else None)
            correct.append(self._session(job.cohort, int(row)).evaluate(*tests, job.answer).numpy(force=True))
        clock.lap("evaluate")
        return JobResult(correct=np.stack(correct), seconds=clock.each(len(job.rows)))

    def choose(self, job: Choose) -> JobResult:
        """Let learners choose by what they held out, one after the other."""
        members = self.cohorts[job.cohort].plan.members
        for row in job.rows:
            session = self._session(job.cohort, int(row))
            session.choose(*self.data.held_out(members.held_out(np.array([row]))[0]))
            self._keep(job.cohort, int(row), session)
        return JobResult()
