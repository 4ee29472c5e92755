"""The engine of a cluster: the round asks it as any other, and it asks shards, which hold the learners' states.

Which learners share a job depends on the cohort alone, as in the loop engine; a job's learners are in as many shards as
it takes. So sums are computed in the same order, and results have the same bits, however many shards there are.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

import consilience
from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets
from consilience.errors import ClusterError
from consilience.learner.device import state_device
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState, stacked_shapes
from consilience.simulation.cluster.connect import own_code_by_value
from consilience.simulation.engines.answers import AnswerStore
from consilience.simulation.engines.base import EngineName, Fields
from consilience.simulation.engines.cohort import CohortPlan, Settings
from consilience.simulation.engines.job_parts import Uploads, merge_results, merge_uploads, take_entries
from consilience.simulation.engines.jobs import Inspect, Job, JobResult, Work
from consilience.simulation.engines.loop.engine import rows_per_job
from consilience.simulation.engines.ray.deal import Deal
from consilience.simulation.engines.ray.remote_shard import Call, RemoteShard
from consilience.simulation.engines.ray.sent_answers import SentAnswers
from consilience.simulation.engines.shared_data import data_dtype

log = logging.getLogger("consilience")

_JOBS_AHEAD = 4  # for each shard: it never waits for the next job, and few uploads wait to be taken
_MAX_ROWS = 16  # of a job that is not local work


@dataclass(frozen=True)
class ShardOptions:
    """How many shards there are, what each takes of the cluster, and how it runs its learners."""

    shards: int
    resources: Mapping[str, float]
    engine: EngineName = "loop"
    deterministic: bool = False

    @property
    def together(self) -> bool:
        """Whether the learners of a shard train together, so that a job is better not split."""
        return self.engine != "loop"

    def processes_there(self, nodes: Sequence[str]) -> list[int]:
        """How many shards share the memory of each one's GPU, or else of its machine; nodes: where each of them is."""
        share = self.resources.get("num_gpus")
        return [nodes.count(node) if share is None else round(1 / share) for node in nodes]


class RayEngine:
    """Deals the learners to shards, and brings jobs, uploads, answers and states from and to them."""

    processes: tuple[int, ...] = ()  # on this machine, where the memory of a run is measured

    def __init__(
        self, ray: Any, plans: list[CohortPlan], data: Dataset, own: LocalTestSets | None, options: ShardOptions
    ) -> None:
        self.plans = plans
        self.name: str = options.engine
        self.learners = [Learner(plan.spec) for plan in plans]
        self.answers = AnswerStore([list(each.channels) for each in self.learners], [len(p.members) for p in plans])
        device, dtype = torch.device(plans[0].spec.device), plans[0].spec.dtype
        self.example = torch.empty(0, dtype=data_dtype(data.inputs, dtype), device=state_device(device))
        self.deal = Deal(plans, options.shards, in_blocks=options.together)
        self._ray, self._options = ray, options
        self._job_rows = [rows_per_job(plan, learner) for plan, learner in zip(plans, self.learners, strict=True)]
        self._sent = SentAnswers(ray, self.answers)
        self._uploads: Uploads = {}
        self._threads = torch.get_num_threads()
        names = [self.deal.describe(shard) for shard in range(self.deal.shards)]
        self.shards = [RemoteShard(ray, name, dict(options.resources)) for name in names]
        try:
            self._start(data, own)
        except BaseException:
            self._end()
            raise
        if not options.together:
            torch.set_num_threads(1)  # as in every shard, so that bits do not depend on it

    def _start(self, data: Dataset, own: LocalTestSets | None) -> None:
        for shard in self.shards:
            shard.create()
        for shard in self.shards:
            shard.wait_until_started()
            _refuse_other_version(shard)
        with own_code_by_value(self._ray):
            shared = self._ray.put(data), self._ray.put(own)
            how = self._options.engine, self._options.deterministic
            there = self._options.processes_there([shard.node for shard in self.shards])
            for number, shard in enumerate(self.shards):
                shard.call("set_up", self._ray.put(self.deal.plans_of(number)), *shared, *how, there[number])
        for shard in self.shards:
            shard.wait_for_set_up()
            log.info("%s: on %s", shard.name, shard.node)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def split(self, kind: type[Job], cohort: int, rows: np.ndarray) -> list[np.ndarray]:
        """Rows split into jobs, as the loop splits them; of stacks, where the next row is in another shard."""
        if not rows.size:
            return []
        if self._options.together:
            owner = self.deal.owner[cohort][rows]
            return np.split(rows, np.flatnonzero(np.diff(owner)) + 1)
        size = {Work: self._job_rows[cohort], Inspect: 1}.get(kind, _MAX_ROWS)
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, JobResult]]:
        """Do jobs and yield their results in order; uploads stay until the next result is asked for."""
        self._copy_states()
        self._sent.drop(self.shards)
        waiting, ahead = deque[tuple[Job, list[_Part]]](), _JOBS_AHEAD * len(self.shards)
        for following in range(len(jobs)):
            while len(waiting) < ahead and following + len(waiting) < len(jobs):
                job = jobs[following + len(waiting)]
                waiting.append((job, self._send(job)))
            job, parts = waiting.popleft()
            yield job, self._collect(job, parts)

    def _copy_states(self) -> None:
        """From time to time copy the states of shards, all at once: see `RemoteShard`."""
        asked = [(shard, shard.call("read_all", changes=False)) for shard in self.shards if shard.copy_is_due]
        for shard, call in asked:
            shard.keep_copy(shard.result(call))

    def _send(self, job: Job) -> list[_Part]:
        """Ask every shard that has learners of a job to do its part."""
        parts = []
        for number, entries in self.deal.shards_of(job.cohort, job.rows):
            shard, part = self.shards[number], take_entries(job, entries)
            self._sent.send(shard, part)
            cohort = self.deal.cohorts(number).index(job.cohort)
            local = replace(part, cohort=cohort, rows=self.deal.place[job.cohort][part.rows])
            parts.append(_Part(entries, shard, shard.call("do", local)))
        return parts

    def _collect(self, job: Job, parts: list[_Part]) -> JobResult:
        """Wait for all parts of a job, and keep its uploads."""
        results, uploads = [], []
        for part in parts:
            result, arrays, lines = part.shard.result(part.call)
            results.append((part.entries, result))
            mine = {n: ({k: self._tensor(a) for k, a in ts.items()}, self._tensor(w)) for n, (ts, w) in arrays.items()}
            uploads.append((part.entries, mine))
            for level, message in lines:
                log.log(level, "%s, on %s: %s", part.shard.name, part.shard.node, message)
        self._uploads = merge_uploads(uploads, len(job.rows))
        return merge_results(results)

    def uploads(self, job: Work, name: str) -> tuple[dict[str, Tensor], Tensor]:
        """What the rows of a job just done upload to an exchange: tensors (rows, ...) and weights."""
        return self._uploads[name]

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.example.device)

    # -- states --------------------------------------------------------------------------------------------------------

    def read(self, cohort: int, rows: np.ndarray | None = None, fields: Fields | None = None) -> LearnerState:
        """The stacked states of some learners, as a copy; fields: those that are needed, the others are empty."""
        rows = np.arange(len(self.plans[cohort].members)) if rows is None else rows
        wanted = None if fields is None else list(fields)
        asked = [
            (entries, shard, shard.call("read", local, place, wanted, changes=False))
            for shard, local, place, entries in self._places(cohort, rows)
        ]
        state = self._empty_state(cohort, len(rows), wanted)
        mine = state.flatten()
        for entries, shard, call in asked:
            for path, array in shard.result(call).items():
                mine[path][entries] = self._tensor(array)
        return state

    def write(self, cohort: int, rows: np.ndarray, state: LearnerState) -> None:
        """Replace the states of some learners by those of a stacked state."""
        arrays = {path: tensor.numpy(force=True) for path, tensor in state.flatten().items()}
        for shard, local, place, entries in self._places(cohort, rows):
            shard.call("write", local, place, {path: array[entries] for path, array in arrays.items()})

    def write_parameters(self, cohort: int, rows: np.ndarray, values: Mapping[str, Tensor]) -> None:
        """Replace parameters of some learners by name: values (rows, ...), or one for all."""
        shapes = self.learners[cohort].binding.parameters.shapes
        arrays = {name: np.array(value.numpy(force=True)) for name, value in values.items()}
        for shard, local, place, entries in self._places(cohort, rows):
            mine = {name: a if a.ndim == len(shapes[name]) else a[entries] for name, a in arrays.items()}
            shard.call("write_parameters", local, place, mine)

    def set_settings(self, cohort: int, settings: Settings) -> None:
        """Give every learner of a cohort its own values of these settings."""
        rows = np.arange(len(self.plans[cohort].members))
        for shard, local, _, entries in self._places(cohort, rows):
            shard.call("set_settings", local, {key: values[entries] for key, values in settings.items()})

    def _places(self, cohort: int, rows: np.ndarray) -> Iterator[tuple[RemoteShard, int, np.ndarray, np.ndarray]]:
        """Where rows are: shard, the cohort's number and the rows' places there, and their positions among the rows."""
        for number, entries in self.deal.shards_of(cohort, rows):
            local = self.deal.cohorts(number).index(cohort)
            yield self.shards[number], local, self.deal.place[cohort][rows[entries]], entries

    def _empty_state(self, cohort: int, rows: int, fields: Fields | None) -> LearnerState:
        shapes = stacked_shapes(template_state(self.learners[cohort]), rows)
        return LearnerState.unflatten(
            {
                path: torch.zeros(
                    shape if fields is None or path[0] in fields else 0, dtype=dtype, device=self.example.device
                )
                for path, (shape, dtype) in shapes.items()
            }
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for shard in self.shards:
            shard.end()
        torch.set_num_threads(self._threads)


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of a job: which of its entries, in which shard."""

    entries: np.ndarray
    shard: RemoteShard
    call: Call


def _refuse_other_version(shard: RemoteShard) -> None:
    """Refuse another version of consilience there; warn of another torch, which may round otherwise."""
    version, torch_version = shard.versions
    if version != consilience.__version__:
        raise ClusterError(
            f"consilience is {version} on {shard.node}, and {consilience.__version__} here; install the same version"
        )
    if torch_version != torch.__version__:
        here = torch.__version__
        log.warning("torch is %s on %s and %s here: results may differ in rounding", torch_version, shard.node, here)
