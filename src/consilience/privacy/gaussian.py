"""The Gaussian mechanism in closed form: epsilon, delta and noise, exactly (Balle and Wang 2018).

A release of f(data) + N(0, (sigma S)^2), where f changes by at most S between neighboring data sets, is as private as
telling N(0, 1) from N(mu, 1) with mu = 1 / sigma is hard. Several releases, each of which may depend on those before,
are together one with mu^2 = the sum of their mu^2 (Dong et al. 2022). So the number of releases and the noise
multiplier sigma decide everything, and no approximation is involved.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_ROUNDED_UP = 1 + 1e-12  # so that no rounding spends more than the budget
_LARGEST = 1e6  # of epsilon and mu in the searches below


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which a Gaussian mechanism with this mu is (epsilon, delta)-private."""
    from scipy.special import log_ndtr

    if mu <= 0:
        return 0.0
    near, far = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return max(math.exp(near) - math.exp(min(far, near)), 0.0)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for which a Gaussian mechanism with this mu is (epsilon, delta)-private.

    >>> round(epsilon_of(mu=10 / 4, delta=1e-5), 3)  # 100 releases with sigma 4
    13.207
    """
    return 0.0 if delta_of(0.0, mu) <= delta else _bracket(lambda epsilon: delta_of(epsilon, mu) - delta)[1]


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu with which a Gaussian mechanism is (epsilon, delta)-private."""
    return _bracket(lambda mu: delta - delta_of(epsilon, mu))[0]


def noise_of_releases(epsilon: float, delta: float, releases: int) -> float:
    """The noise multiplier with which this number of releases together are (epsilon, delta)-private.

    The standard deviation of the noise is this number times the sensitivity of a release: by how much, in the l2 norm,
    it can differ between two neighboring data sets.
    """
    return math.sqrt(releases) / mu_of(epsilon, delta) * _ROUNDED_UP


def epsilon_of_releases(noise: float, releases: int, delta: float) -> float:
    """The epsilon of this number of releases, each with this noise multiplier, together."""
    return epsilon_of(math.sqrt(releases) / noise, delta) if releases else 0.0


def _bracket(falling: Callable[[float], float]) -> tuple[float, float]:
    """Two numbers, as close as floats are, between which a falling function becomes 0 or less.

    Whoever needs a bound takes the side that is safe.
    """
    low, high = 0.0, 1.0
    while falling(high) > 0 and high < _LARGEST:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return low, high
