"""The hands that do local work, in this process or in a worker: jobs in, small results out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from consilience.exchanges.base import Contribution, Exchange, Received
from consilience.learner.learner import Batch, Learner, Seen
from consilience.objectives import Objective
from consilience.randomness import seed_of, uniform
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.inspection import look_rows
from consilience.simulation.engines.jobs import Done, Evaluate, Inspect, Job, Probe, Receive, StoreAnswers, Work
from consilience.simulation.engines.probing import probed
from consilience.simulation.engines.shared_data import Data
from consilience.simulation.records.timing import Clock
from consilience.simulation.round.plan import AFTER, BEFORE, batches


class Hands:
    """Does jobs, one learner after the other, with one thread."""

    def __init__(self, cohorts: list[Cohort], data: Data, slots: list[dict[str, Tensor]]) -> None:
        self.cohorts, self.data, self.slots = cohorts, data, slots
        self.learners = [Learner(c.plan.spec) for c in cohorts]
        self.answers: dict[int, Received] = {}
        self.batches: dict[int, int] = {}  # how many answers came together, by the number of the first

    def do(self, job: Job) -> Done:
        """Do one job."""
        match job:
            case Work():
                return self._work(job)
            case Receive():
                return self._receive(job)
            case Evaluate():
                return self._evaluate(job)
            case Probe():
                return probe_rows(self.learners[job.cohort], self.cohorts[job.cohort], self.data, job)
            case Inspect():
                return look_rows(self.learners[job.cohort], self.cohorts[job.cohort], self.data.test_inputs, job)
            case StoreAnswers():
                return self._learn(job)

    def _learn(self, job: StoreAnswers) -> Done:
        for first, batch in job.answers.items():
            tensors = {k: torch.as_tensor(t) for k, t in batch.tensors.items()}
            counts = torch.as_tensor(batch.count)
            fresh = torch.ones((), dtype=torch.bool, device=counts.device)
            self.batches[first] = len(counts)
            for i, count in enumerate(counts):
                self.answers[first + i] = Received({k: t[i] for k, t in tensors.items()}, count, fresh)
        for first in job.forget:
            for number in range(first, first + self.batches.pop(first, 0)):
                del self.answers[number]
        return Done()

    def _work(self, job: Work) -> Done:
        done = [self._work_row(job, i) for i in range(len(job.rows))]
        losses, right, non_finite, seconds = zip(*done, strict=True)
        return Done(
            losses=np.stack(losses),
            right=np.stack(right) if job.evaluate else None,
            non_finite={i: bad for i, bad in enumerate(non_finite) if bad},
            seconds={phase: np.array([s[phase] for s in seconds]) for phase in seconds[0]},
        )

    def _work_row(self, job: Work, i: int) -> tuple[np.ndarray, np.ndarray | None, str, dict[str, float]]:
        number, cohort, learner = int(job.rows[i]), self.cohorts[job.cohort], self.learners[job.cohort]
        learner.wear(cohort.row(number))
        held = {name: self.answers[int(answers[i])] for name, answers in job.held.items()}
        clock, right, bad = Clock(self.data.inputs.device), None, ""
        losses = torch.zeros(learner.told)
        if job.train:
            if cohort.plan.work.reset:
                learner.forget_optimizer()
            size = int(cohort.plan.members.sizes[number])
            if learner.has_round_start:
                self._open(job, number, held)
            with self._drawing(cohort, number, job.round):
                losses = learner.train(self._batches(cohort, learner, number, job.round), size, held)
        clock.lap("train")
        if job.evaluate:
            right = learner.evaluate(*self.data.tests()).numpy(force=True)
        clock.lap("evaluate")
        if job.put and job.up[i]:
            bad = self._put(job, i, {name: held[name] for name in job.put}, clock)
        if job.train and not torch.isfinite(learner.row["parameters"].sum()):
            bad = "a parameter is no number after training"
        clock.lap("exchange")
        return losses.numpy(force=True), right, bad, clock.laps

    @contextlib.contextmanager
    def _drawing(self, cohort: Cohort, number: int, round_: int) -> Iterator[None]:
        """What a model draws itself, as dropout does, hangs on who and when alone; others' numbers go on as before."""
        members, device = cohort.plan.members, self.data.inputs.device
        cpu = device.type == "cpu"
        generator = torch.default_generator if cpu else torch.cuda.default_generators[device.index or 0]
        before = generator.get_state()
        generator.manual_seed(seed_of("model", int(members.seed[number]), round_, int(members.learner[number])))
        try:
            yield
        finally:
            generator.set_state(before)

    def _batches(self, cohort: Cohort, learner: Learner, number: int, round_: int) -> Iterator[Batch]:
        members, work = cohort.plan.members, cohort.plan.work
        seed, who = int(members.seed[number]), int(members.learner[number])
        planned = batches(
            seed,
            round_,
            who,
            int(members.sizes[number]),
            work.batch_size,
            work.epochs,
            even=bool(members.even[number]),
            least=work.least,
        )
        samples = cohort.samples(number)
        for step, positions in enumerate(planned):
            chosen = torch.from_numpy(samples[positions]).to(self.data.inputs.device)
            draws = {
                o.name: self._draws(o, o.batch_draws, len(positions), seed, round_, who, step)
                for o in learner.owners
                if o.batch_draws
            }
            at = torch.from_numpy(positions).to(self.data.inputs.device)
            yield Batch(self.data.inputs[chosen], self.data.targets[chosen], draws, at)

    def _draws(self, owner: Exchange | Objective, wanted: int, rows: int, *where: int) -> Tensor:
        drawn = uniform(f"draws {owner.name}", *where, np.arange(wanted)[:, None], np.arange(rows)[None, :])
        return torch.from_numpy(drawn).to(self.data.inputs.device)

    def _put(self, job: Work, i: int, received: Mapping[str, Received], clock: Clock) -> str:
        """Write what a row puts up into the job's slot; say so if it is no number."""
        cohort, learner = self.cohorts[job.cohort], self.learners[job.cohort]
        members, number = cohort.plan.members, int(job.rows[i])
        where = int(members.seed[number]), job.round, int(members.learner[number]), AFTER
        size = int(members.sizes[number])
        active = [e for e in learner.exchanges if e.name in received]
        draws = {e.name: self._draws(e, e.sample_draws, size, *where) for e in active if e.sample_draws}
        seen = self._seen(cohort, learner, number) if learner.needs_representations(received) else learner.nothing()
        clock.lap("represent")
        put = learner.contribute(seen, learner.count(size), draws, received)
        bad = [name for name, contribution in put.items() if not self._write(job, i, name, contribution)]
        return f"exchange {bad[0]!r} would put up what is no number" if bad else ""

    def _seen(self, cohort: Cohort, learner: Learner, number: int) -> Seen:
        """One pass over a row's samples."""
        samples = torch.from_numpy(cohort.samples(number)).to(self.data.inputs.device)
        valid = cohort.shared(number)
        marks = None if valid is None else torch.from_numpy(valid).to(samples.device, learner.dtype)
        return learner.represent(self.data.inputs[samples], self.data.targets[samples], marks)

    def _open(self, job: Work, number: int, held: Mapping[str, Received]) -> None:
        """Exchanges look at all samples before the row trains."""
        cohort, learner = self.cohorts[job.cohort], self.learners[job.cohort]
        members, size = cohort.plan.members, int(cohort.plan.members.sizes[number])
        where = int(members.seed[number]), job.round, int(members.learner[number]), BEFORE
        opening = [e for e in learner.exchanges if e.has_round_start and e.sample_draws]
        draws = {e.name: self._draws(e, e.sample_draws, size, *where) for e in opening}
        learner.on_round_start(self._seen(cohort, learner, number), learner.count(size), draws, held)

    def _write(self, job: Work, i: int, name: str, put: Contribution) -> bool:
        """Into the slot; False where the sum of a tensor is not finite, which it is not if a value is not."""
        slot, finite = self.slots[job.cohort], True
        for key, value in {**put.tensors, "": put.weight}.items():
            slot[f"{name}.{key}"][job.slot, i].copy_(value)
            finite = finite and math.isfinite(value.sum())
        return finite

    def _receive(self, job: Receive) -> Done:
        learner, cohort = self.learners[job.cohort], self.cohorts[job.cohort]
        for i, number in enumerate(job.rows):
            learner.wear(cohort.row(int(number)))
            learner.receive({name: self.answers[int(a[i])] for name, a in job.news.items() if a[i] >= 0})
        return Done()

    def _evaluate(self, job: Evaluate) -> Done:
        learner, cohort, right, clock = (
            self.learners[job.cohort],
            self.cohorts[job.cohort],
            [],
            Clock(self.data.inputs.device),
        )
        for number in job.rows:
            learner.wear(cohort.row(int(number)))
            who = int(cohort.plan.members.learner[number]) if job.own else None
            right.append(learner.evaluate(*self.data.tests(who)).numpy(force=True))
        clock.lap("evaluate")
        return Done(right=np.stack(right), seconds=clock.each(len(job.rows)))


def probe_rows(learner: Learner, cohort: Cohort, data: Data, job: Probe) -> Done:
    """Probe one row after the other: training a classifier keeps a device busy."""
    clock, right = Clock(data.inputs.device), []
    for number, (first, last) in zip(job.rows, job.seen.tolist(), strict=True):
        learner.wear({key: tensor.to(data.inputs.device) for key, tensor in cohort.row(int(number)).items()})
        seed, samples = int(cohort.plan.members.seed[number]), slice(first, last)
        seen = data.inputs[samples], data.targets[samples]
        right.append(probed(learner, *seen, data.test_inputs, data.test_targets, job.probes, seed))
    clock.lap("evaluate")
    return Done(right=np.stack(right), seconds=clock.each(len(job.rows)))
