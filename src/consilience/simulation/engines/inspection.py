"""Looking at models from outside: what they tell of test samples together, and what a layer gives away of inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from consilience.functional.distance_correlation import distance_correlation
from consilience.learner.learner import Learner
from consilience.objectives.two_stage import measured
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.jobs import Done, Inspect
from consilience.simulation.records.timing import Clock

SAMPLES = 500
"""Test samples between which distances are measured."""


def look_rows(learner: Learner, cohort: Cohort, inputs: Tensor, job: Inspect) -> Done:
    """Look at one row after the other, on test inputs (samples, ...): in large batches they keep a device busy."""
    clock, total, dependence = Clock(inputs.device), None, []
    for number in job.rows:
        learner.wear({key: tensor.to(inputs.device) for key, tensor in cohort.row(int(number)).items()})
        if job.logits:
            told = learner.logits(inputs).to(torch.float64)
            total = told if total is None else total + told
        if job.layer is not None:
            dependence.append(_dependence(learner, inputs[:SAMPLES], job.layer))
    clock.lap("evaluate")
    return Done(
        logits=None if total is None else total.numpy(force=True),
        dependence=np.array(dependence) if dependence else None,
        seconds=clock.each(len(job.rows)),
    )


@torch.no_grad()
def _dependence(learner: Learner, inputs: Tensor, layer: str) -> float:
    seen = learner.outputs(inputs, [layer])[layer]
    return float(distance_correlation(measured(learner.task, inputs), seen))
