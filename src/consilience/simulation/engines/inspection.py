"""Inspecting models from outside: their logits for the test samples, and what a layer gives away of the inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.classification import classification_metrics
from consilience.functional.distance_correlation import distance_correlation
from consilience.learner.device import state_device
from consilience.learner.learner import Learner
from consilience.learner.passes import compute_features, compute_logits, layer_outputs, sample_parts
from consilience.objectives.two_stage import inputs_for_distances
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.jobs import Inspect, JobResult, Measure, Represent
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.records.timing import Clock

SAMPLES = 500
"""Test samples between which distances are measured."""


def inspect_rows(learner: Learner, cohort: Cohort, inputs: Tensor, job: Inspect) -> JobResult:
    """Inspect one row after the other, on test inputs (samples, ...): large batches keep a device busy."""
    clock, total, dependence = Clock(inputs.device), None, []
    for number in job.rows:
        learner.bind(cohort.state.row(int(number)).to(inputs.device))
        if job.logits:
            logits = compute_logits(learner, inputs).to(state_device(inputs.device)).to(torch.float64)
            total = logits if total is None else total + logits
        if job.layer is not None:
            dependence.append(_dependence(learner, inputs[:SAMPLES], job.layer))
    clock.lap("evaluate")
    return JobResult(
        logits=None if total is None else total.numpy(force=True),
        dependence=np.array(dependence) if dependence else None,
        seconds=clock.each(len(job.rows)),
    )


def measure_rows(learner: Learner, cohort: Cohort, data: SharedData, job: Measure) -> JobResult:
    """Take further measures of one row after the other, from its logits for the test samples."""
    clock, targets, found = Clock(data.inputs.device), data.test_targets.numpy(force=True), []
    for number in job.rows:
        learner.bind(cohort.state.row(int(number)).to(data.inputs.device))
        logits = compute_logits(learner, data.test_inputs)[0].numpy(force=True).astype(np.float64)  # (samples, classes)
        found.append(classification_metrics(logits, targets, job.metrics))
    clock.lap("evaluate")
    measured = {key: np.array([each[key] for each in found]) for key in found[0]}
    return JobResult(measured=measured, seconds=clock.each(len(job.rows)))


def represent_rows(learner: Learner, cohort: Cohort, data: SharedData, job: Represent) -> JobResult:
    """The features of what one row after the other held out."""
    found, members = [], cohort.plan.members
    for number in job.rows:
        learner.bind(cohort.state.row(int(number)).to(data.inputs.device))
        inputs, _ = data.held_out(members.held_out(np.array([number]))[0])
        found.append(compute_features(learner, inputs).numpy(force=True))
    return JobResult(features=tuple(found))


@torch.no_grad()
def _dependence(learner: Learner, inputs: Tensor, layer: str) -> float:
    outputs = layer_outputs(learner, inputs, [layer])[layer]
    seen = torch.cat(list(sample_parts(learner, inputs, SAMPLES)))
    return float(distance_correlation(inputs_for_distances(learner.task, seen), outputs))
