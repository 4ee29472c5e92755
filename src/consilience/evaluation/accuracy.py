"""Accuracy, on the test set as it is or as a learner's own data would weigh it."""

from __future__ import annotations

import numpy as np


def accuracy(right: np.ndarray, total: np.ndarray, shares: np.ndarray | None = None) -> float:
    """In percent, from how many test samples of each class were told right, (classes,), and how many there are.

    shares: a learner's own class shares; each class then counts by its share instead of by its test samples.
    """
    if shares is None:
        return float(100 * right.sum() / total.sum())
    known = np.where(total > 0, shares, 0.0)
    return float(100 * (known * right / np.maximum(total, 1)).sum() / max(known.sum(), 1e-12))
