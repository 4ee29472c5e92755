"""What each held-out sample adds to a model's score, so that the score of any samples follows from theirs."""

from __future__ import annotations

import numpy as np

from consilience.task import TaskKind


def sample_scores(logits: np.ndarray, targets: np.ndarray, kind: TaskKind, variance: float) -> np.ndarray:
    """For `consilience.presentation.trial.score`: (samples,), or (samples, 2) where the score is no mean over samples.

    logits: (samples, classes). variance: of the targets of a regression, over all learners, so that all are measured in
    one unit.

        >>> sample_scores(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]), "single-label", 0.0)
        array([ True, False])
        >>> sample_scores(np.array([[0.5]]), np.array([1.0]), "regression", 2.0)  # 1 - 0.5 ** 2 / 2
        array([0.875])
        >>> sample_scores(np.array([[2.0, 3.0, -1.0]]), np.array([[1, 0, 0]]), "multi-label", 0.0)
        array([[2., 3.]])
    """
    if kind == "regression":
        explained: np.ndarray = 1 - (logits[:, 0] - targets) ** 2 / variance
        return explained
    if kind == "multi-label":
        given, there = logits > 0, targets == 1
        return np.stack([2.0 * (given & there).sum(1), 1.0 * (given.sum(1) + there.sum(1))], axis=1)
    right: np.ndarray = logits.argmax(1) == targets
    return right
