"""Testing every learner's model, each different model once."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation import accuracy
from consilience.simulation.engine import Engine
from consilience.simulation.jobs import Evaluate, Job
from consilience.simulation.record import Record
from consilience.simulation.scene import Scene

_COMPARED = 2**24  # values at a time


def examine(scene: Scene, engine: Engine, record: Record) -> None:
    """Write every learner's accuracy into the record."""
    started = time.perf_counter()
    for i, cohort in enumerate(engine.cohorts):
        different, like = _different_models(engine, i)
        right = _right(engine, i, different)[like]  # (rows, classes)
        at = cohort.plan.members.federation, cohort.plan.members.learner
        record["accuracy"][at] = accuracy(right, scene.test_counts)
        counts = scene.test_counts
        if scene.own_tests is not None:
            right, counts = _right(engine, i, np.arange(len(like)), own=True), scene.own_tests.counts()[at[1]]
        record["accuracy_local"][at] = accuracy(right, counts, scene.shares[at])
    elapsed = time.perf_counter() - started
    record["wall.evaluate"] += elapsed
    record["seconds.evaluate"] += elapsed / record["accuracy"].size


def _right(engine: Engine, cohort: int, rows: np.ndarray, own: bool = False) -> np.ndarray:
    jobs: list[Job] = [Evaluate(cohort, some, own) for some in engine.cut(Evaluate, cohort, rows)]
    found = [done.right for _, done in engine.run(jobs) if done.right is not None]
    return np.concatenate(found)


def _different_models(engine: Engine, cohort: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to test, and for each row which of them has its model: where weights are shared, one test does for all."""
    state, members = engine.cohorts[cohort].state, engine.cohorts[cohort].plan.members
    rows = np.arange(len(members))
    if not any(e.changes_model for e in engine.learners[cohort].exchanges):
        return rows, rows
    _, firsts, of = np.unique(members.federation, return_index=True, return_inverse=True)
    first = firsts[of]  # of the row's federation
    same = np.ones(len(rows), dtype=bool)
    for key in ("parameters", "buffers"):
        same &= _equal_rows(state[key], first)
    return np.unique(np.where(same, first, rows), return_inverse=True)


def _equal_rows(stacked: Tensor, other: np.ndarray) -> np.ndarray:
    """Whether each row is, bit for bit, the same as another one; a few rows at a time."""
    if not stacked.shape[1]:
        return np.ones(len(other), dtype=bool)
    some = max(1, _COMPARED // stacked.shape[1])
    parts = [
        (stacked[i : i + some] == stacked[torch.from_numpy(other[i : i + some]).to(stacked.device)]).all(1)
        for i in range(0, len(other), some)
    ]
    return torch.cat(parts).numpy(force=True)
