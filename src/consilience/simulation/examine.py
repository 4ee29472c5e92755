"""Testing every learner's model, each different model once."""

from __future__ import annotations

import hashlib
import time

import numpy as np
from torch import Tensor

from consilience.evaluation import accuracy
from consilience.simulation.engine import Engine
from consilience.simulation.jobs import Evaluate, Job
from consilience.simulation.record import Record
from consilience.simulation.scene import Scene


def examine(scene: Scene, engine: Engine, record: Record) -> None:
    """Write every learner's accuracy into the record."""
    started = time.perf_counter()
    for i, cohort in enumerate(engine.cohorts):
        same = _same_models(engine, i)
        right = _right(engine, i, list(dict.fromkeys(same)))
        members = cohort.plan.members
        for row, like in enumerate(same):
            at = members.federation[row], members.learner[row]
            record["accuracy"][at] = accuracy(right[like], scene.test_counts)
            record["accuracy_local"][at] = accuracy(right[like], scene.test_counts, scene.shares[at])
    elapsed = time.perf_counter() - started
    record["wall.evaluate"] += elapsed
    record["seconds.evaluate"] += elapsed / record["accuracy"].size


def _right(engine: Engine, cohort: int, rows: list[int]) -> dict[int, np.ndarray]:
    jobs: list[Job] = [Evaluate(cohort, (row,)) for row in rows]
    right = {}
    for job, done in engine.run(jobs):
        assert isinstance(job, Evaluate) and done.right is not None
        right[job.rows[0]] = done.right[0]
    return right


def _same_models(engine: Engine, cohort: int) -> list[int]:
    """For each row the first row with the same model: where weights are shared one test does for all."""
    state, rows = engine.cohorts[cohort].state, len(engine.cohorts[cohort].plan.members)
    if not any(e.changes_model for e in engine.learners[cohort].exchanges):
        return list(range(rows))
    first: dict[bytes, int] = {}
    return [first.setdefault(_digest(state["parameters"][r], state["buffers"][r]), r) for r in range(rows)]


def _digest(*tensors: Tensor) -> bytes:
    digest = hashlib.blake2b()
    for tensor in tensors:
        digest.update(tensor.numpy(force=True).tobytes())
    return digest.digest()
