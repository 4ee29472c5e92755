"""A lower bound of epsilon from the outputs of a mechanism: what its differential privacy can be at best.

A mechanism runs many times on each of two neighboring inputs, and a score of every output guesses the input. If the
mechanism is (epsilon, delta)-differentially private, no guess has both rates of errors below a limit (Kairouz et al.
2015); rates that are measured below it refute the epsilon, with a stated confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.special import betaincinv, ndtri

from consilience.errors import ConfigurationError, TrainingError
from consilience.privacy.gaussian import epsilon_of
from consilience.validation import check_choice

Bound = Literal["general", "gaussian"]
"""general: valid for every mechanism. gaussian: assumes that the mechanism's tradeoff of errors is that of one Gaussian
(Gaussian differential privacy, as of Gaussian noise in every round); tighter (Nasr et al. 2023)."""
MIN_TRIALS = 20
"""Outputs of each input, at least."""
_THRESHOLDS = 200  # that are tried, at most


@dataclass(frozen=True)
class EpsilonBound:
    """epsilon: the mechanism is not (epsilon', delta)-private for any smaller epsilon', with this confidence.

    false_positives, false_negatives: of `trials` outputs of each input that had no part in choosing the threshold.
    """

    epsilon: float
    bound: Bound
    delta: float
    confidence: float
    trials: int
    false_positives: int
    false_negatives: int


def epsilon_lower_bound(
    scores_in: np.ndarray,
    scores_out: np.ndarray,
    delta: float,
    *,
    bound: Bound = "general",
    confidence: float = 0.95,
) -> EpsilonBound:
    """The lower bound from scores of outputs with the canary (larger) and without it.

    The threshold is chosen on the first half of each, and the errors are counted on the second half: Clopper-Pearson
    limits of both rates hold together with the given confidence.
    """
    check_choice("bound", bound, get_args(Bound))
    if not 0 <= delta < 1:
        raise ConfigurationError(f"delta is {delta!r}; it must be at least 0 and below 1")
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence is {confidence!r}; it must be between 0 and 1, such as 0.95")
    inside, outside = _checked("with the canary", scores_in), _checked("without the canary", scores_out)
    half = min(len(inside), len(outside)) // 2
    threshold = _best_threshold(inside[:half], outside[:half], delta, bound)
    measured_in, measured_out = inside[half : 2 * half], outside[half : 2 * half]
    false_positives = int((measured_out >= threshold).sum())
    false_negatives = int((measured_in < threshold).sum())
    rates = [_upper_limit(errors, half, confidence) for errors in (false_positives, false_negatives)]
    epsilon = _epsilon_of_rates(rates[0], rates[1], delta, bound)
    return EpsilonBound(epsilon, bound, delta, confidence, half, false_positives, false_negatives)


def _epsilon_of_rates(false_positive: float, false_negative: float, delta: float, bound: Bound) -> float:
    """The smallest epsilon that allows these rates of errors."""
    if bound == "gaussian":
        return epsilon_of(float(-ndtri(false_positive) - ndtri(false_negative)), delta)
    pairs = ((false_positive, false_negative), (false_negative, false_positive))
    ratios = [(1 - delta - other) / rate for rate, other in pairs if rate > 0]
    return max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)])


def _best_threshold(inside: np.ndarray, outside: np.ndarray, delta: float, bound: Bound) -> float:
    """The threshold whose limits of errors give the largest epsilon; of several, that in the widest gap of scores."""
    values = np.unique(np.concatenate([inside, outside]))
    if len(values) == 1:
        return float(values[0])
    middles, gaps = (values[1:] + values[:-1]) / 2, np.diff(values)
    if len(middles) > _THRESHOLDS:
        some = np.linspace(0, len(middles) - 1, _THRESHOLDS).round().astype(int)
        middles, gaps = middles[some], gaps[some]
    found = [
        _epsilon_of_rates(
            _upper_limit(int((outside >= t).sum()), len(outside)),
            _upper_limit(int((inside < t).sum()), len(inside)),
            delta,
            bound,
        )
        for t in middles
    ]
    return float(middles[np.lexsort((gaps, np.array(found)))[-1]])


def _upper_limit(errors: int, trials: int, confidence: float = 0.95) -> float:
    """The Clopper-Pearson upper limit of a rate; two of them hold together with the confidence."""
    if errors >= trials:
        return 1.0
    return float(betaincinv(errors + 1, trials - errors, 1 - (1 - confidence) / 2))


def _checked(which: str, scores: np.ndarray) -> np.ndarray:
    """Scores in float64, in the order of the trials; an error if there are too few, or if one is NaN."""
    values = np.asarray(scores, dtype=np.float64).ravel()
    if len(values) < MIN_TRIALS:
        raise ConfigurationError(
            f"there are {len(values)} scores {which}; a lower bound of epsilon needs {MIN_TRIALS} or more of each"
        )
    if bad := int(np.isnan(values).sum()):
        raise TrainingError(f"{bad} of {len(values)} scores {which} are NaN; check what the mechanism returns")
    return values
