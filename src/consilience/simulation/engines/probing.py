"""Testing representations: a classifier is trained on what a model makes of the training set, and tested."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.probes import knn_probe, linear_probe
from consilience.functional.class_means import one_hot
from consilience.learner.learner import Learner

PROBES = {
    "none": (),
    "linear": ("linear",),
    "scaled": ("scaled",),
    "knn": ("knn",),
    "both": ("linear", "knn"),
    "auto": ("scaled", "knn"),
}
"""What is asked of a representation, by the name of the setting."""


def probed(
    learner: Learner,
    inputs: Tensor,
    targets: Tensor,
    test_inputs: Tensor,
    test_targets: Tensor,
    probes: tuple[str, ...],
    seed: int,
) -> np.ndarray:
    """Test samples of each class told right by each probe of the row that is worn, (probes, classes)."""
    classes = learner.task.classes
    seen, tests = learner.features(inputs), learner.features(test_inputs)
    told = {
        "linear": lambda: linear_probe(seen, targets, tests, classes, seed=seed),
        "scaled": lambda: linear_probe(*_scaled(seen, targets, tests), classes, seed=seed),
        "knn": lambda: knn_probe(seen, targets, tests, classes),
    }
    right = [one_hot(test_targets, classes) & (told[p]() == test_targets)[:, None] for p in probes]
    return torch.stack(right).sum(1).numpy(force=True)


def _scaled(seen: Tensor, targets: Tensor, tests: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features with mean 0 and deviation 1 over the training samples; one that is always the same stays at 0."""
    mean, deviation = seen.mean(0), seen.std(0, correction=0)
    wide = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return (seen - mean) / wide, targets, (tests - mean) / wide
