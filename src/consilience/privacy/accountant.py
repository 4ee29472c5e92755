"""What local steps on sampled batches and releases spend together, by privacy loss distributions (dp-accounting).

A step adds Gaussian noise to the sum of clipped gradients of the samples it drew, each with the same probability and
independently of the others (Poisson sampling). A release adds Gaussian noise to sums over all samples, or over samples
that are drawn in the same way. Neighboring data sets differ in one sample that is there or contributes nothing; how
many samples there are is known. Noise multipliers are relative to what one sample can change. A sample with a smaller
budget of its own is drawn less often: only its own probability enters its own accounting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from consilience.errors import ConfigurationError
from consilience.extras import install_command
from consilience.privacy.gaussian import epsilon_of_releases, noise_of_releases

_INTERVAL = 1e-4  # of the discretized privacy losses, relative to epsilon; they are rounded up: epsilon is a bound
_RELEASE_SHARE = 0.25
_PRECISION = 1e-3  # of a noise multiplier or a share, relative
_LEAST_SHARE = 1e-9  # a sample that may be drawn less often than that is never drawn
_MOST_NOISE = 1e5


@dataclass(frozen=True)
class Steps:
    """Steps with noise: how many, each sample's probability of being drawn for one, and the noise multiplier."""

    count: int = 0
    rate: float = 1.0
    noise: float = math.inf


@dataclass(frozen=True)
class Releases:
    """Releases with noise: how many, the noise multiplier, and a sample's probability of entering one."""

    count: int = 0
    noise: float = math.inf
    rate: float = 1.0


@cache
def epsilon_spent(steps: Steps, releases: Releases, delta: float, about: float = 1.0) -> float:
    """The epsilon of all of them together. Releases of all samples alone are accounted in closed form, exactly.

    about: the size of epsilon, above which privacy losses need not be told apart as finely.
    """
    drawn = [(each.count, each.rate, each.noise) for each in (steps, releases) if each.count and each.rate > 0]
    if not drawn:
        return 0.0
    if not steps.count and releases.rate >= 1:
        return epsilon_of_releases(releases.noise, releases.count, delta)
    accounting, accountant = _library()
    relation = accounting.NeighboringRelation.REPLACE_SPECIAL
    found = accountant(neighboring_relation=relation, value_discretization_interval=_INTERVAL * max(about, 1.0))
    for count, rate, noise in drawn:
        gaussian = accounting.GaussianDpEvent(noise)
        found.compose(gaussian if rate >= 1 else accounting.PoissonSampledDpEvent(rate, gaussian), count)
    return float(found.get_epsilon(delta))


def release_noise(epsilon: float, delta: float, releases: int, steps: int) -> float:
    """The noise multiplier of releases that share a budget with steps; without steps they have all of it.

    With steps, the releases alone would spend a quarter of epsilon.
    """
    if not releases:
        return math.inf
    return noise_of_releases(epsilon * (_RELEASE_SHARE if steps else 1.0), delta, releases)


@cache
def step_noise(epsilon: float, delta: float, steps: int, rate: float, releases: Releases) -> float:
    """The smallest noise multiplier, to a thousandth, with which steps and these releases stay within epsilon."""

    def fits(noise: float) -> bool:
        return epsilon_spent(Steps(steps, rate, noise), releases, delta, epsilon) <= epsilon

    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise ConfigurationError(
                f"epsilon is {epsilon:g} for {steps:,} steps, each on a share {rate:g} of the samples: no noise is "
                f"large enough; allow a larger epsilon, or take fewer rounds"
            )
    low = max(low, high / 64)  # less noise than that is none
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@cache
def draw_share(epsilon: float, delta: float, steps: Steps, releases: Releases, others: float) -> float:
    """For a sample with a budget of its own: its probabilities of being drawn, as a share of those given.

    The largest share, to a thousandth, with which these steps and releases together stay within epsilon; 0 where
    epsilon is 0. A smaller probability never spends more. others: the epsilon of the samples that are drawn as given.
    """

    def spent(share: float) -> float:
        own = replace(steps, rate=share * steps.rate), replace(releases, rate=share * releases.rate)
        return epsilon_spent(*own, delta, epsilon)

    if epsilon <= 0 or epsilon >= others:
        return float(epsilon > 0)
    low, high, share = 0.0, 1.0, epsilon / others
    while high - low > _PRECISION * high and high > _LEAST_SHARE:
        found = spent(share)
        low, high = (share, high) if found <= epsilon else (low, share)
        if (1 - _PRECISION) * epsilon <= found <= epsilon:
            break
        share *= (1 - _PRECISION / 2) * epsilon / max(found, 1e-300)  # epsilon is nearly proportional to the share
        share = share if low < share < high else (low + high) / 2
    return low


def batch_capacity(samples: int, rate: float, steps: int, epsilon: float, delta: float) -> int:
    """How many samples a batch has room for, so that the places never run out for practical purposes.

    If more are drawn, the last ones are left out, and the analysis of Poisson sampling does not hold. The probability p
    that it ever happens adds at most (1 + e^epsilon) p to delta; room is made until that is a thousandth of delta.
    """
    from scipy.stats import binom

    allowed = 1e-3 * delta / (1 + math.exp(min(epsilon, 600.0))) / max(steps, 1)
    return min(int(binom.isf(max(allowed, 1e-300), samples, rate)) + 1, samples) if rate < 1 else samples


def usable_delta(delta: float) -> float:
    """The part of delta that steps are accounted with: a thousandth is for batches that run out of places."""
    return delta * (1 - 1e-3)


def _library() -> tuple[Any, Any]:
    """dp-accounting and its accountant, which are an extra."""
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise ConfigurationError(
            f"the privacy of samples that are drawn by chance is accounted with dp-accounting, which is not installed: "
            f"{install_command('privacy')}; private='upload' does without it, and private='fixed-encoder' where no "
            f"sample has an epsilon of its own"
        ) from None
    return dp_accounting, PLDAccountant
