"""The ROC of an attack: how many members it finds at which share of false alarms, in particular at very few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.errors import ConfigurationError, TrainingError

FALSE_POSITIVE_RATES = (0.001, 0.01)
"""Where the true positive rate is reported: an attack that is right about few samples, and sure of them, counts."""
_POINTS = 200  # of a curve that is drawn


@dataclass(frozen=True)
class Roc:
    """How well scores distinguish members from others.

    auc: the probability that a member has the larger score, ties counting half; 0.5 is chance.
    balanced_accuracy: the mean of both classes' accuracies at the best threshold; 0.5 is chance.
    tpr_at_fpr: the largest true positive rate at no more than each of FALSE_POSITIVE_RATES; None where there are too
    few others to measure such a rate. curve: (false, true positive rate) of thresholds, from none to all accepted.
    """

    members: int
    others: int
    auc: float
    balanced_accuracy: float
    tpr_at_fpr: tuple[float | None, ...]
    curve: tuple[tuple[float, float], ...]


def roc_of(members: np.ndarray, others: np.ndarray) -> Roc:
    """The ROC of the scores of members and of others; a larger score says "member".

    >>> roc_of(np.array([2.0, 3.0]), np.array([1.0, 2.0])).auc
    0.875
    """
    inside, outside = _checked("members", members), _checked("others", others)
    thresholds = np.union1d(inside, outside)[::-1]
    true = 1 - np.searchsorted(inside, thresholds, "left") / len(inside)  # (thresholds,) rising
    false = 1 - np.searchsorted(outside, thresholds, "left") / len(outside)
    true, false = np.concatenate([[0.0], true]), np.concatenate([[0.0], false])
    return Roc(
        len(inside),
        len(outside),
        float(np.sum(np.diff(false) * (true[1:] + true[:-1]) / 2)),
        float((true + 1 - false).max() / 2),
        tuple(_tpr_at(rate, true, false, len(outside)) for rate in FALSE_POSITIVE_RATES),
        _drawn(false, true),
    )


def _tpr_at(rate: float, true: np.ndarray, false: np.ndarray, others: int) -> float | None:
    """The true positive rate at no more than a false positive rate; None if less than one false alarm is allowed."""
    if others * rate < 1:
        return None
    return float(true[false <= rate + 1e-12].max())


def _drawn(false: np.ndarray, true: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Points of the curve, as dense at very small false positive rates as at large ones."""
    if len(false) <= _POINTS:
        kept = np.arange(len(false))
    else:
        smallest = false[false > 0].min() if (false > 0).any() else 1.0
        wanted = np.concatenate([[0.0], np.geomspace(smallest, 1.0, _POINTS - 2)])
        kept = np.unique(np.concatenate([[0], np.searchsorted(false, wanted, "right") - 1]))
    return tuple((float(false[i]), float(true[i])) for i in kept)


def _checked(who: str, scores: np.ndarray) -> np.ndarray:
    """Sorted, in float64; an error if there are none, or if one is NaN."""
    values = np.sort(np.asarray(scores, dtype=np.float64).ravel())
    if not len(values):
        raise ConfigurationError(
            f"there are no scores of {who}; an attack is measured on samples of both kinds, members and others"
        )
    if bad := int(np.isnan(values).sum()):
        raise TrainingError(f"{bad} of {len(values)} scores of {who} are NaN; check the training of the models")
    return values
