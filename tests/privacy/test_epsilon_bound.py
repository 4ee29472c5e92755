"""Lower bounds of epsilon: against closed forms, their confidence, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from consilience.errors import ConfigurationError, TrainingError
from consilience.privacy.epsilon_bound import Bound, epsilon_lower_bound
from consilience.privacy.gaussian import epsilon_of

BOUNDS: tuple[Bound, ...] = ("general", "gaussian")


def gaussian_scores(mu: float, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(mu, 1, trials), generator.normal(0, 1, trials)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("mu", (0.5, 1.0, 2.0))
def test_bound_stays_below_the_true_epsilon_and_is_not_vacuous(bound: Bound, mu: float) -> None:
    truth = epsilon_of(mu, 1e-5)
    found = [epsilon_lower_bound(*gaussian_scores(mu, 20_000, s), 1e-5, bound=bound).epsilon for s in range(10)]
    assert max(found) <= truth * 1.02  # one of 20 may be above it
    share = {"general": 0.3, "gaussian": 0.85}[bound]
    assert float(np.median(found)) > share * truth


def test_confidence_holds() -> None:
    # No privacy loss at all: a bound above 0 is wrong, and may happen in at most 5 % of the runs.
    wrong = [epsilon_lower_bound(*gaussian_scores(0.0, 200, s), 0.0).epsilon > 0 for s in range(300)]
    assert np.mean(wrong) <= 0.05


def test_counts_by_hand() -> None:
    # Perfectly separated: no error in 10 trials of each, so both rates are below the Clopper-Pearson limit.
    found = epsilon_lower_bound(np.full(20, 2.0), np.zeros(20), 0.0)
    limit = binomtest(0, 10).proportion_ci(0.95).high
    assert (found.trials, found.false_positives, found.false_negatives) == (10, 0, 0)
    assert found.epsilon == pytest.approx(math.log((1 - limit) / limit))


def test_randomized_response_is_bounded_tightly() -> None:
    # The truth with probability e^2 / (1 + e^2) has exactly epsilon 2 at delta 0.
    generator, truth = np.random.default_rng(5), math.exp(2) / (1 + math.exp(2))
    inside, outside = generator.random(40_000) < truth, generator.random(40_000) >= truth
    found = epsilon_lower_bound(inside.astype(float), outside.astype(float), 0.0).epsilon
    assert 1.85 < found <= 2.0


def test_refusals() -> None:
    few, enough = np.zeros(19), np.zeros(20)
    with pytest.raises(ConfigurationError, match=r"19 scores with the canary; .* 20 or more"):
        epsilon_lower_bound(few, enough, 1e-5)
    with pytest.raises(ConfigurationError, match="19 scores without the canary"):
        epsilon_lower_bound(enough, few, 1e-5)
    with pytest.raises(ConfigurationError, match=r"delta is 1.0; it must be at least 0 and below 1"):
        epsilon_lower_bound(enough, enough, 1.0)
    with pytest.raises(ConfigurationError, match=r"confidence is 95"):
        epsilon_lower_bound(enough, enough, 1e-5, confidence=95)
    with pytest.raises(TrainingError, match="20 of 20 scores without the canary are NaN"):
        epsilon_lower_bound(enough, np.full(20, np.nan), 1e-5)
    with pytest.raises(ConfigurationError, match=r"unknown bound 'tight'"):
        epsilon_lower_bound(enough, enough, 1e-5, bound="tight")  # type: ignore[arg-type]
