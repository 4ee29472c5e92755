"""Testing representations: a classifier is trained on a model's features of the training set, and tested."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.probes import knn_probe, linear_probe
from consilience.kinds.one_hot import one_hot
from consilience.learner.learner import Learner
from consilience.learner.passes import compute_features
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.jobs import JobResult, Probe
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.records.timing import Clock

PROBES = {
    "none": (),
    "linear": ("linear",),
    "scaled": ("scaled",),
    "knn": ("knn",),
    "both": ("linear", "knn"),
    "auto": ("scaled", "knn"),
}
"""The probes of a representation, by the name of the setting."""


@dataclass(frozen=True)
class ProbeSamples:
    """The samples a probe is trained on, and those it is tested on."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def probe(learner: Learner, samples: ProbeSamples, probes: tuple[str, ...], seed: int) -> np.ndarray:
    """Test samples of each class that each probe of the bound state predicts correctly, (probes, classes)."""
    found = correct_samples(learner, samples, probes, seed)
    return _by_class(found, samples.test_targets, learner.task.classes)


def correct_samples(learner: Learner, samples: ProbeSamples, probes: tuple[str, ...], seed: int) -> Tensor:
    """Which test samples each probe of the bound state predicts correctly, (probes, tests)."""
    classes = learner.task.classes
    features, tests = compute_features(learner, samples.inputs), compute_features(learner, samples.test_inputs)
    predicted = {
        "linear": lambda: linear_probe(features, samples.targets, tests, classes, seed=seed),
        "scaled": lambda: linear_probe(*_scaled(features, samples.targets, tests), classes, seed=seed),
        "knn": lambda: knn_probe(features, samples.targets, tests, classes),
    }
    return torch.stack([predicted[each]() == samples.test_targets for each in probes])


def _by_class(correct: Tensor, targets: Tensor, classes: int) -> np.ndarray:
    """How many correct samples are of each class, (probes, classes)."""
    return (one_hot(targets, classes) & correct[..., None]).sum(1).numpy(force=True)


def probe_rows(learner: Learner, cohort: Cohort, data: SharedData, job: Probe) -> JobResult:
    """Probe one row after the other: training a classifier keeps a device busy."""
    clock, correct, validated = Clock(data.inputs.device), [], []
    tests = len(data.test_targets)
    for i, (number, (first, last)) in enumerate(zip(job.rows, job.training.tolist(), strict=True)):
        learner.bind(cohort.state.row(int(number)).to(data.inputs.device))
        samples = _samples(data, slice(first, last), None if job.held_out is None else job.held_out[i])
        seed = int(cohort.plan.members.seed[number])
        found = correct_samples(learner, samples, job.probes, seed)  # (probes, test samples, then those held out)
        correct.append(_by_class(found[:, :tests], data.test_targets, learner.task.classes))
        validated.append(found[0, tests:].numpy(force=True))
    clock.lap("evaluate")
    return JobResult(correct=np.stack(correct), validated=tuple(validated), seconds=clock.each(len(job.rows)))


def _samples(data: SharedData, some: slice, held_out: np.ndarray | None) -> ProbeSamples:
    """What a probe is trained and tested on; what is held out is not trained on, and comes after the test samples."""
    if held_out is None:
        return ProbeSamples(data.inputs[some], data.targets[some], data.test_inputs, data.test_targets)
    positions = np.setdiff1d(np.arange(some.start, some.stop), held_out)
    inputs, targets = data.held_out(held_out)
    return ProbeSamples(
        *data.held_out(positions), torch.cat([data.test_inputs, inputs]), torch.cat([data.test_targets, targets])
    )


def _scaled(features: Tensor, targets: Tensor, tests: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features with mean 0 and deviation 1 over the training samples; a constant feature stays at 0."""
    mean, deviation = features.mean(0), features.std(0, correction=0)
    wide = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return (features - mean) / wide, targets, (tests - mean) / wide
