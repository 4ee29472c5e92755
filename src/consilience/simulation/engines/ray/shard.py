"""A shard: some rows of every cohort, in an engine of a process of its own, perhaps on another machine.

Everything comes and goes as NumPy arrays, which Ray passes without copying; arrays that come are read-only.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

import consilience
from consilience.channels import Answer
from consilience.data import Dataset
from consilience.data.local_test_sets import LocalTestSets
from consilience.learner.device import be_deterministic
from consilience.learner.state import LearnerState, Path
from consilience.simulation.cluster.node import LogLine, keep_log, node_name
from consilience.simulation.engines.base import EngineName
from consilience.simulation.engines.branches.engine import TOGETHER
from consilience.simulation.engines.cohort import CohortPlan, Settings
from consilience.simulation.engines.job_parts import merge_results, merge_uploads, take_entries
from consilience.simulation.engines.jobs import Job, JobResult, Work
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.engines.stack.engine import StackEngine

log = logging.getLogger("consilience")

Arrays = dict[Path, np.ndarray]
"""The tensors of a state by their path."""
ArrayUploads = dict[str, tuple[dict[str, np.ndarray], np.ndarray]]
"""What a job uploads by exchange: tensors (rows, ...) and weights."""


class Shard:
    """Does what the engine of a cluster asks, in the order in which it is asked. Cohorts and rows are the shard's."""

    def __init__(self) -> None:
        self.engine: LoopEngine | StackEngine | None = None
        self._log = keep_log()

    def describe(self) -> dict[str, str]:
        """Where it is, and what it runs."""
        return {"node": node_name(), "consilience": consilience.__version__, "torch": torch.__version__}

    def set_up(
        self,
        plans: list[CohortPlan],
        data: Dataset,
        own: LocalTestSets | None,
        name: EngineName,
        deterministic: bool,
        processes_there: int = 1,
    ) -> None:
        """Open the engine; processes_there: how many shards share its GPU, or its machine's memory."""
        if deterministic:
            be_deterministic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the data are read-only: nobody writes them
            if name == "loop":
                self.engine = LoopEngine(plans, data, 0, own)
            else:
                self.engine = TOGETHER[name](plans, data, own, processes_there)
                log.info("%s", self.engine.memory.describe())

    def read(self, cohort: int, rows: np.ndarray | None, fields: Sequence[str] | None) -> Arrays:
        """Copies of the states of some rows, or of all; fields: only these."""
        state = self._engine.read(cohort, rows, fields).flatten()
        return {path: _to_numpy(t) for path, t in state.items() if fields is None or path[0] in fields}

    def read_all(self) -> list[Arrays]:
        """Copies of the states of all rows of every cohort."""
        return [self.read(cohort, None, None) for cohort in range(len(self._engine.plans))]

    def write(self, cohort: int, rows: np.ndarray, state: Mapping[Path, np.ndarray]) -> None:
        """Replace the states of some rows."""
        self._engine.write(cohort, rows, LearnerState.unflatten({path: _to_torch(a) for path, a in state.items()}))

    def write_all(self, states: Sequence[Mapping[Path, np.ndarray]]) -> None:
        """Replace the states of all rows of every cohort."""
        for cohort, state in enumerate(states):
            self.write(cohort, np.arange(len(self._engine.plans[cohort].members)), state)

    def write_parameters(self, cohort: int, rows: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Replace parameters of some rows by name."""
        self._engine.write_parameters(cohort, rows, {name: _to_torch(value) for name, value in values.items()})

    def set_settings(self, cohort: int, settings: Settings) -> None:
        """Give every row of a cohort its own values of these settings."""
        self._engine.set_settings(cohort, {key: np.array(values) for key, values in settings.items()})

    def store_answers(self, number: int, tensors: Mapping[str, np.ndarray], count: np.ndarray, version: int) -> None:
        """Keep a batch of answers that learners hold."""
        device = self._engine.example.device
        there = {key: _to_torch(tensor).to(device) for key, tensor in tensors.items()}
        self._engine.answers.batches[number] = Answer(there, _to_torch(count).to(device), version)

    def drop_answers(self, numbers: Sequence[int]) -> None:
        """Forget batches of answers that nobody holds any more."""
        for number in numbers:
            del self._engine.answers.batches[number]

    def do(self, job: Job) -> tuple[JobResult, ArrayUploads, list[LogLine]]:
        """Do a job: its result, its uploads, and what was logged meanwhile."""
        engine = self._engine
        entries = engine.split(type(job), job.cohort, np.arange(len(job.rows)))
        parts, uploads = [], []
        for some, (part, result) in zip(entries, engine.run([take_entries(job, e) for e in entries]), strict=True):
            parts.append((some, result))
            if isinstance(part, Work) and part.online.any():
                found = {name: engine.uploads(part, name) for name in part.uploads}
                copies = {n: ({k: t.clone() for k, t in ts.items()}, w.clone()) for n, (ts, w) in found.items()}
                uploads.append((some, copies))
        merged = merge_uploads(uploads, len(job.rows))
        arrays = {n: ({k: _to_numpy(t) for k, t in ts.items()}, _to_numpy(w)) for n, (ts, w) in merged.items()}
        return merge_results(parts), arrays, self._log.take()

    @property
    def _engine(self) -> LoopEngine | StackEngine:
        assert self.engine is not None, "it is set up first"
        return self.engine


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy that later work does not change."""
    return np.array(tensor.numpy(force=True))


def _to_torch(array: np.ndarray) -> Tensor:
    """A copy in memory of torch's own, as rows of a state have it: a product may round otherwise elsewhere."""
    return torch.from_numpy(np.array(array)).clone()
