"""Accuracy on the test set, or with its classes weighted as in a learner's own data."""

from __future__ import annotations

import numpy as np


def accuracy(correct: np.ndarray, total: np.ndarray, class_shares: np.ndarray | None = None) -> np.ndarray:
    """Accuracy in percent from the correct predictions per class, (..., classes), and the test samples, (classes,).

    class_shares: the shares of the classes in learners' own data, (..., classes); each class then counts by its share
    instead of by its test samples.
    """
    if class_shares is None:
        common: np.ndarray = 100 * correct.sum(-1) / total.sum()
        return common
    shares = np.where(total > 0, class_shares, 0.0)
    own: np.ndarray = 100 * (shares * correct / np.maximum(total, 1)).sum(-1) / np.maximum(shares.sum(-1), 1e-12)
    return own
