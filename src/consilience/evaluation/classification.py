"""Further measures of a classifier: top-5 accuracy, macro F1, area under the ROC curve, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Classes = NDArray[np.int64]
TOP = 5


def confusion_matrix(logits: Floats, targets: Classes) -> Classes:
    """How many samples of each class, by row, are predicted as each class, by column; logits (samples, classes)."""
    classes = logits.shape[1]
    counts = np.bincount(targets * classes + logits.argmax(1), minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def top5_accuracy(logits: Floats, targets: Classes) -> float:
    """The share of samples, in percent, whose class has one of the five largest logits; of equal ones the first."""
    own = np.take_along_axis(logits, targets[:, None], axis=1)
    before = (logits > own) | ((logits == own) & (np.arange(logits.shape[1]) < targets[:, None]))
    return float(100 * np.mean(before.sum(1) < TOP))


def macro_f1(logits: Floats, targets: Classes) -> float:
    """The mean of classes' F1, in percent, over the classes that occur or are predicted."""
    confusion = confusion_matrix(logits, targets)
    twice, either = 2 * np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    return float(100 * np.mean(twice[either > 0] / either[either > 0]))


def roc_auc(logits: Floats, targets: Classes) -> float:
    """The mean of classes' areas under the ROC curve, one against the rest, in percent.

    A sample's score is the predicted probability of the class. Classes that no sample has, or every sample, are left
    out. The area is computed from exact ranks: it is the chance that a sample of the class has a higher score than
    one of another class, where equal scores count one half.
    """
    shifted = logits - logits.max(1, keepdims=True)
    scores = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    areas = []
    for c in range(logits.shape[1]):
        ours = targets == c
        positive, negative = int(ours.sum()), int((~ours).sum())
        if positive and negative:
            above = _ranks(scores[:, c])[ours].sum() - positive * (positive + 1) / 2
            areas.append(above / (positive * negative))
    return float(100 * np.mean(areas)) if areas else float("nan")


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values have their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[group]
    return ranks


_NUMBERS: dict[str, Callable[[Floats, Classes], float]] = {"top5": top5_accuracy, "f1": macro_f1, "auc": roc_auc}


def classification_metrics(logits: Floats, targets: Classes, names: Collection[str]) -> dict[str, float]:
    """The measures of these names, as a round's record has them: `top5`, `f1`, `auc`, and `confusion.TRUE.PREDICTED`.

    Measures of logits that are NaN or infinite are NaN.
    """
    if not np.isfinite(logits).all():
        return dict.fromkeys(metric_keys(names, logits.shape[1]), float("nan"))
    found = {name: _NUMBERS[name](logits, targets) for name in names if name in _NUMBERS}
    if "confusion" in names:
        counts = confusion_matrix(logits, targets)
        found |= {f"confusion.{i}.{j}": float(counts[i, j]) for i, j in np.ndindex(*counts.shape)}
    return found


def metric_keys(names: Collection[str], classes: int) -> list[str]:
    """The keys of these measures in a round's record."""
    places = np.ndindex(classes, classes) if "confusion" in names else ()
    return [*(name for name in _NUMBERS if name in names), *(f"confusion.{i}.{j}" for i, j in places)]
