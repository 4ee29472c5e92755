"""Accuracy, on the test set as it is or as a learner's own data would weigh it."""

from __future__ import annotations

import numpy as np


def accuracy(right: np.ndarray, total: np.ndarray, shares: np.ndarray | None = None) -> np.ndarray:
    """In percent, from how many test samples of each class were told right, (..., classes), of how many there are.

    shares: learners' own class shares; each class then counts by its share instead of by its test samples.
    """
    if shares is None:
        every: np.ndarray = 100 * right.sum(-1) / total.sum()
        return every
    known = np.where(total > 0, shares, 0.0)
    own: np.ndarray = 100 * (known * right / np.maximum(total, 1)).sum(-1) / np.maximum(known.sum(-1), 1e-12)
    return own
