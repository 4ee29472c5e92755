"""The stack engine: all learners of an architecture in one step, whatever federation they belong to.

Each architecture is a stack of its own. State and data lie on the device; rows are cut into groups only where they do
not fit, and where even a group does not, it is halved and the work goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets
from consilience.errors import ConsilienceError
from consilience.learner.learner import Learner, Row
from consilience.simulation.engines.cohort import Cohort, CohortPlan, stacked_shapes
from consilience.simulation.engines.inspection import look_rows
from consilience.simulation.engines.jobs import Done, Evaluate, Inspect, Job, Probe, Receive, StoreAnswers, Work
from consilience.simulation.engines.loop.executor import probe_rows
from consilience.simulation.engines.loop.shared_memory import plain
from consilience.simulation.engines.shared_data import Data, data_arrays
from consilience.simulation.engines.stack.answer_cache import AnswerCache, received_of, side_by_side
from consilience.simulation.engines.stack.batched_layers import Layers
from consilience.simulation.engines.stack.memory_budget import MemoryBudget, tidy_up
from consilience.simulation.engines.stack.stackable import in_words
from consilience.simulation.engines.stack.stacked_trainer import Put, StackedTrainer
from consilience.simulation.records.timing import Clock

_KEPT = 8  # formations kept ready, those used last
_COUNTS = 3  # different numbers of rows at a time in a cohort, beyond which places are filled up
_SIZES = 8  # different sizes of formations then


class StackEngine:
    """Holds the cohorts' state and does jobs on it, a whole stack of learners at a time."""

    name = "stack"
    processes: tuple[int, ...] = ()

    def __init__(self, plans: list[CohortPlan], data: Dataset, own: LocalTestSets | None = None) -> None:
        self.device, dtype = torch.device(plans[0].spec.device), plans[0].spec.dtype
        self.learners = [Learner(plan.spec) for plan in plans]
        arrays = data_arrays(data, own)
        self.room = MemoryBudget(self.learners, plans, arrays)
        self.data = Data(
            **{
                key: torch.from_numpy(array).to(self.device, dtype if array.dtype.kind == "f" else torch.int64)
                for key, array in arrays.items()
            }
        )
        self.cohorts = [
            Cohort(plan, self._state(plan, learner)) for plan, learner in zip(plans, self.learners, strict=True)
        ]
        self.bank = AnswerCache(self.device)
        self.put: Put = {}
        self._counts: list[set[int]] = [set() for _ in plans]
        self._formations: dict[tuple[int, int, bool], StackedTrainer] = {}

    def _state(self, plan: CohortPlan, learner: Learner) -> dict[str, Tensor]:
        return plain(stacked_shapes(learner.template(), len(plan.members)), self.room.home)

    @property
    def like(self) -> Tensor:
        """An array of the kind, and in the place, that channels should keep."""
        return self.data.inputs

    def cut(self, kind: type[Job], cohort: int, rows: np.ndarray) -> list[np.ndarray]:
        """As many rows as fit at once."""
        size = self.room.rows[cohort]
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Done]]:
        """Do jobs and give their results in order; what was put up stays until the next result is asked for."""
        for job in jobs:
            yield job, self._do(job)

    def _do(self, job: Job) -> Done:
        if isinstance(job, StoreAnswers):
            self.learn(job)
            return Done()
        with in_words(self.learners[job.cohort]):
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

    def learn(self, job: StoreAnswers) -> None:
        """Hear new answers."""
        self.bank.learn(job)

    def contributions(self, job: Work, name: str) -> tuple[dict[str, Tensor], Tensor]:
        """What the rows of a job just done have put up for an exchange: tensors (rows, ...) and weights."""
        return self.put[name]

    def state(self) -> dict[str, Tensor]:
        """Every learner's state, for a checkpoint."""
        return {f"{i}.{k}": t for i, c in enumerate(self.cohorts) for k, t in c.state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        for key, tensor in self.state().items():
            tensor.copy_(state[key])

    # -- work ----------------------------------------------------------------------------------------------------------

    def _work(self, job: Work) -> Done:
        """In one formation, or in several where rows have batches of unlike widths or do not fit at once."""
        learner, clock = self.learners[job.cohort], Clock(self.device)
        losses = np.zeros((len(job.rows), learner.told))
        right = np.zeros((len(job.rows), learner.task.classes), dtype=np.int64) if job.evaluate else None
        finite = np.ones((len(job.rows), 1 + len(job.put)), dtype=bool)
        self.put = {}

        def work(entries: np.ndarray) -> None:
            losses[entries], finite[entries], told_right = self._work_some(job, entries, clock)
            if right is not None:
                right[entries] = told_right

        self._in_parts(job.cohort, self._drawn_up(job), work)
        return Done(losses, right, _nonsense(job, finite), clock.each(len(job.rows)))

    def _in_parts(self, cohort: int, parts: list[np.ndarray], work: Callable[[np.ndarray], None]) -> None:
        """Do work part by part; what does not fit into the memory is done again in halves."""
        waiting = list(parts)
        while waiting:
            entries, fits = waiting.pop(0), True
            try:
                work(entries)
            except torch.OutOfMemoryError:
                fits = False
            if not fits:  # only now nothing holds on to what was begun
                waiting = self._smaller(cohort, entries) + waiting

    def _drawn_up(self, job: Work) -> list[np.ndarray]:
        """Entries of the job whose batches have one width at every step, as many together as fit."""
        members = self.cohorts[job.cohort].plan.members
        kinds = np.where(members.even[job.rows], members.sizes[job.rows], 0)
        groups = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
        return [some for group in groups for some in self.cut(Work, job.cohort, group)]

    def _smaller(self, cohort: int, entries: np.ndarray) -> list[np.ndarray]:
        """The same entries in halves, after everything that can be freed is."""
        crowded = len(self._formations) > 1
        self._formations.clear()
        tidy_up(self.device)
        if crowded:
            return [entries]  # others' places took the room
        if len(entries) == 1 and self.room.pass_rows(cohort, 1) == 1:
            raise ConsilienceError(
                f"one learner of model {self.learners[cohort].task.model!r} does not fit into the memory of "
                f"{self.device}; take smaller batches or a smaller model"
            )
        self.room.shrink(cohort, -(-len(entries) // 2))
        return self.cut(Work, cohort, entries)

    def _work_some(self, job: Work, entries: np.ndarray, clock: Clock) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Losses, what is finite of parameters and of each exchange's contribution, and test samples told right."""
        cohort, learner = self.cohorts[job.cohort], self.learners[job.cohort]
        count, seated = len(entries), self._seated(job.cohort, entries)
        up = job.up[seated] & (np.arange(len(seated)) < count)
        stacked = self._formation(job.cohort, job.rows[seated])
        held = {name: numbers[seated] for name, numbers in job.held.items()}
        stacked.enter(cohort, job.rows[seated], job.round, self.bank.of(held, held))
        if job.train:
            stacked.train()
        else:
            stacked.losses.zero_()
        clock.lap("train")
        mine = {key: tensor[:count] for key, tensor in stacked.state.items()}
        right = self._right(job.cohort, mine) if job.evaluate else torch.zeros(0)
        clock.lap("evaluate")
        put = job.put if up.any() else ()
        if put:
            stacked.represent(put)
            clock.lap("represent")
            self._take(stacked.contribute(put, up), entries, len(job.rows))
        told, terms = stacked.tell(put)[:count].numpy(force=True), learner.told
        stacked.leave(cohort, count)  # last: what did not fit the memory before is done again from what was
        clock.lap("exchange")
        finite = np.ones((count, 1 + len(job.put)), dtype=bool)
        finite[:, : 1 + len(put)] = told[:, terms:] > 0
        finite[~up[:count], 1:] = True
        return told[:, :terms], finite, right.numpy(force=True)

    def _seated(self, cohort: int, entries: np.ndarray) -> np.ndarray:
        """The entries, and where their number changes from round to round a few over again to fill up the places.

        What is recorded holds for a number of places; with a few numbers it is used again, and what comes of the places
        filled up is left behind.
        """
        counts, members = self._counts[cohort], len(self.cohorts[cohort].plan.members)
        counts.add(len(entries))
        if len(counts) <= _COUNTS:
            return entries
        step = -(-members // _SIZES)
        seats = max(min(-(-len(entries) // step) * step, self.room.rows[cohort]), len(entries))
        return np.concatenate([entries, np.full(seats - len(entries), entries[0])])

    def _formation(self, cohort: int, rows: np.ndarray) -> StackedTrainer:
        even = bool(self.cohorts[cohort].plan.members.even[rows[0]])
        key = cohort, len(rows), even
        if key not in self._formations:
            while len(self._formations) >= _KEPT:
                del self._formations[next(iter(self._formations))]
            self._formations[key] = StackedTrainer(
                self.learners[cohort],
                self.cohorts[cohort],
                self.data,
                len(rows),
                even,
                self.room.pass_of(cohort, len(rows), int(self.cohorts[cohort].plan.members.sizes.max())),
            )
        self._formations[key] = self._formations.pop(key)  # the one used last
        return self._formations[key]

    def _take(self, put: Put, entries: np.ndarray, rows: int) -> None:
        """Keep what some entries of a job put up, beside what others did."""
        count = len(entries)
        put = {name: ({k: t[:count] for k, t in tensors.items()}, w[:count]) for name, (tensors, w) in put.items()}
        if count == rows:
            self.put = put
            return
        index = torch.from_numpy(entries).to(self.device)
        for name, (tensors, weight) in put.items():
            if name not in self.put:
                whole = {k: t.new_zeros((rows, *t.shape[1:])) for k, t in tensors.items()}
                self.put[name] = whole, weight.new_zeros((rows, *weight.shape[1:]))
            for key, tensor in tensors.items():
                self.put[name][0][key].index_copy_(0, index, tensor)
            self.put[name][1].index_copy_(0, index, weight)

    # -- answers and tests ---------------------------------------------------------------------------------------------

    def _receive(self, job: Receive) -> Done:
        learner = self.learners[job.cohort]

        def one(row: Row, parts: Mapping[str, Any]) -> Row:
            with learner.dressed(row, *learner.tensors(row)):
                learner.receive({name: received_of(p) for name, p in parts.items()})
            return row

        def work(entries: np.ndarray) -> None:
            news = {name: numbers[entries] for name, numbers in job.news.items()}
            held = self.bank.of(news, [name for name, numbers in news.items() if (numbers >= 0).any()])
            answers, dims = side_by_side(held)
            state = self._rows(job.cohort, job.rows[entries], _unmoved)
            if len(entries) == len(self.cohorts[job.cohort].plan.members):  # the state itself, until the work is done
                state = {k: t.clone() for k, t in state.items()}
            vmap(one, in_dims=(0, dims))(state, answers)
            self._back(job.cohort, job.rows[entries], state)

        self._in_parts(job.cohort, self.cut(Receive, job.cohort, np.arange(len(job.rows))), work)
        return Done()

    def _evaluate(self, job: Evaluate) -> Done:
        clock = Clock(self.device)
        right = np.zeros((len(job.rows), self.learners[job.cohort].task.classes), dtype=np.int64)

        def work(entries: np.ndarray) -> None:
            state = self._rows(job.cohort, job.rows[entries])
            who = self.cohorts[job.cohort].plan.members.learner[job.rows[entries]] if job.own else None
            right[entries] = self._right(job.cohort, state, who).numpy(force=True)

        self._in_parts(job.cohort, self.cut(Evaluate, job.cohort, np.arange(len(job.rows))), work)
        clock.lap("evaluate")
        return Done(right=right, seconds=clock.each(len(job.rows)))

    @torch.no_grad()
    def _right(self, cohort: int, state: Row, who: np.ndarray | None = None) -> Tensor:
        """Test samples of each class told right, (rows, classes); so few rows at once that each sees enough samples.

        who: the learners of the rows, where each is tested on samples of its own.
        """
        learner, own = self.learners[cohort], None if who is None else 0
        rows, samples = self.room.pass_of(cohort, len(state["step"]))

        def one(row: Row, inputs: Tensor, targets: Tensor) -> Tensor:
            with learner.dressed(row, *learner.tensors(row)):
                return learner.evaluate(inputs, targets, samples)

        found = []
        for i in range(0, len(state["step"]), rows):
            part = {k: t[i : i + rows] for k, t in state.items()}
            mine = None if who is None else torch.from_numpy(who[i : i + rows]).to(self.device)
            with Layers():
                found.append(vmap(one, in_dims=(0, own, own))(part, *self.data.tests(mine)))
        return torch.cat(found)

    def _rows(self, cohort: int, rows: np.ndarray, leave: Callable[[str], bool] = lambda key: False) -> Row:
        """The state of some rows on the device, but for what may be left: the state itself where they are all there."""
        state = {k: t for k, t in self.cohorts[cohort].state.items() if not leave(k)}
        if len(rows) == len(self.cohorts[cohort].plan.members):
            return {k: t.to(self.device) for k, t in state.items()}
        index = torch.from_numpy(rows).to(self.room.home)
        return {k: t.index_select(0, index).to(self.device) for k, t in state.items()}

    def _back(self, cohort: int, rows: np.ndarray, state: Row) -> None:
        index = torch.from_numpy(rows).to(self.room.home)
        moved = {key: tensor.to(self.room.home) for key, tensor in state.items()}
        for key, tensor in moved.items():
            self.cohorts[cohort].state[key].index_copy_(0, index, tensor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go of everything on the device: the next run plans with what is free."""
        self._formations.clear()
        self.bank.batches.clear()
        self.put, self.cohorts = {}, []
        del self.data
        tidy_up(self.device)


def _unmoved(key: str) -> bool:
    """What no answer changes: the optimizer's state, and what encodings rounded away."""
    return key.startswith(("optimizer.", "error.")) or key == "step"


def _nonsense(job: Work, finite: np.ndarray) -> dict[int, str]:
    bad = {}
    for i in np.flatnonzero(~finite.all(1)).tolist():
        wrong = [name for name, fine in zip(job.put, finite[i, 1:], strict=True) if not fine]
        if job.train and not finite[i, 0]:
            bad[i] = "a parameter is no number after training"
        elif wrong:
            bad[i] = f"exchange {wrong[0]!r} would put up what is no number"
    return bad
