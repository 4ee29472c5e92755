"""Testing every learner's model, each different model once."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation import accuracy
from consilience.learner.learner import Learner
from consilience.simulation.engines.base import Engine
from consilience.simulation.engines.jobs import Evaluate, Inspect, Job, Probe
from consilience.simulation.records.round_record import Record
from consilience.simulation.setup.setup import Setup

_COMPARED = 2**24  # values at a time


def examine(setup: Setup, engine: Engine, record: Record, there: np.ndarray) -> None:
    """Write every learner's accuracy into the record: what its classifier tells, and what probes do.

    Where no classifier is taught, the accuracy is the first probe's. there: (learners,), who has joined; others are not
    tested.
    """
    started = time.perf_counter()
    for i in np.unique(setup.cohorts.main).tolist():
        members = engine.cohorts[i].plan.members
        home = (setup.cohorts.main[members.federation, members.learner] == i) & there[members.learner]
        if not home.any():
            continue
        different, like = _different_models(engine, i, np.flatnonzero(home), setup.evaluation.labeled)
        at = members.federation[home], members.learner[home]
        told = _right(engine, i, different)[like] if setup.evaluation.labeled else None  # (rows, classes)
        if setup.evaluation.probes:
            probed = _probed(setup, engine, i, different)[like]  # (rows, probes, classes)
            told = probed[:, 0] if told is None else told
            for k, probe in enumerate(setup.evaluation.probes):
                record[f"accuracy_{probe}"][at] = accuracy(probed[:, k], setup.data.test_counts)
        if told is None:
            continue  # nothing tells how good they are
        record["accuracy"][at] = accuracy(told, setup.data.test_counts)
        counts = setup.data.test_counts
        if setup.data.local_test_sets is not None and setup.evaluation.labeled:
            told, counts = _right(engine, i, np.flatnonzero(home), own=True), setup.data.local_test_sets.counts()[at[1]]
        record["accuracy_local"][at] = accuracy(told, counts, setup.data.shares[at])
    if setup.evaluation.ensemble:
        _ask_all(setup, engine, record, there)
    if setup.evaluation.watched_layer is not None:
        _watch(setup, engine, record, setup.evaluation.watched_layer, there)
    elapsed = time.perf_counter() - started
    record["wall.evaluate"] += elapsed
    record["seconds.evaluate"][:, there] += elapsed / record["accuracy"][:, there].size


def _ask_all(setup: Setup, engine: Engine, record: Record, there: np.ndarray) -> None:
    """What the mean of everybody's logits tells, as one who is new would ask all of them."""
    targets = setup.data.train.test_targets
    for f in range(setup.federations.count):
        jobs: list[Job] = []
        for i in np.unique(setup.cohorts.main[f]).tolist():
            rows = setup.cohorts.rows[i][f, (setup.cohorts.main[f] == i) & there]
            jobs += [Inspect(i, some, logits=True) for some in engine.cut(Inspect, i, rows)]
        logits = np.zeros((1 + setup.evaluation.headed, len(targets), len(setup.data.test_counts)))
        for _, done in engine.run(jobs):  # one after the other, in the order of the jobs
            logits += 0.0 if done.logits is None else done.logits
        for key, told in zip(("accuracy_ensemble", "accuracy_heads"), logits, strict=False):
            right = np.bincount(targets[told.argmax(1) == targets], minlength=len(setup.data.test_counts))
            record[key][f, there] = accuracy(right[None], setup.data.test_counts)


def _watch(setup: Setup, engine: Engine, record: Record, layer: str, there: np.ndarray) -> None:
    """How much of the inputs a layer of each model gives away."""
    for i in np.unique(setup.cohorts.main).tolist():
        members = engine.cohorts[i].plan.members
        home = (setup.cohorts.main[members.federation, members.learner] == i) & there[members.learner]
        if not home.any():
            continue
        different, like = _different_models(engine, i, np.flatnonzero(home), told=True)
        jobs: list[Job] = [Inspect(i, some, False, layer) for some in engine.cut(Inspect, i, different)]
        found = np.concatenate([done.dependence for _, done in engine.run(jobs) if done.dependence is not None])
        record["dependence"][members.federation[home], members.learner[home]] = found[like]


def _probed(setup: Setup, engine: Engine, cohort: int, rows: np.ndarray) -> np.ndarray:
    """What probes that learned from the federation's whole training set tell right, (rows, probes, classes)."""
    seen = setup.data.ranges[engine.cohorts[cohort].plan.members.federation]
    jobs: list[Job] = [
        Probe(cohort, some, setup.evaluation.probes, seen[some]) for some in engine.cut(Probe, cohort, rows)
    ]
    return np.concatenate([done.right for _, done in engine.run(jobs) if done.right is not None])


def _right(engine: Engine, cohort: int, rows: np.ndarray, own: bool = False) -> np.ndarray:
    jobs: list[Job] = [Evaluate(cohort, some, own) for some in engine.cut(Evaluate, cohort, rows)]
    found = [done.right for _, done in engine.run(jobs) if done.right is not None]
    return np.concatenate(found)


def _different_models(engine: Engine, cohort: int, rows: np.ndarray, told: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows to test, and for each row which of them has its model: where weights are shared, one test does for all.

    told: whether classifiers are tested, too; else models with the same features are the same.
    """
    state, learner = engine.cohorts[cohort].state, engine.learners[cohort]
    if not any(e.changes_model for e in learner.exchanges):
        return rows, np.arange(len(rows))
    members = engine.cohorts[cohort].plan.members
    _, firsts, of = np.unique(members.federation[rows], return_index=True, return_inverse=True)
    first = rows[firsts[of]]  # of the row's federation
    same = np.ones(len(rows), dtype=bool)
    for flat in (state["parameters"] if told else _features(learner, state["parameters"]), state["buffers"]):
        same &= _equal_rows(flat, rows, first)
    return np.unique(np.where(same, first, rows), return_inverse=True)


def _features(learner: Learner, parameters: Tensor) -> Tensor:
    """Of stacked parameters those that make features, (rows, some): what comes before the classifier and heads."""
    classifier = {f"classifier.{name}" for name, _ in learner.model.classifier.named_parameters()}
    making = {name for name, _ in learner.model.named_parameters()} - classifier
    return parameters[:, learner.parameters.mask(making).to(parameters.device)]


def _equal_rows(stacked: Tensor, rows: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether each of these rows is, bit for bit, the same as another one; a few rows at a time."""
    if not stacked.shape[1]:
        return np.ones(len(other), dtype=bool)
    some = max(1, _COMPARED // stacked.shape[1])
    mine, theirs = (torch.from_numpy(numbers).to(stacked.device) for numbers in (rows, other))
    parts = [(stacked[mine[i : i + some]] == stacked[theirs[i : i + some]]).all(1) for i in range(0, len(other), some)]
    return torch.cat(parts).numpy(force=True)
