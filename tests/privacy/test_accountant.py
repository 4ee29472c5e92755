"""How much noise a budget needs: closed form, privacy loss distributions, Renyi divergences and sampling agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from consilience.privacy.accountant import (
    Releases,
    Steps,
    batch_capacity,
    epsilon_spent,
    release_noise,
    step_noise,
    usable_delta,
)
from consilience.privacy.gaussian import delta_of, epsilon_of, epsilon_of_releases, mu_of, noise_of_releases

dp_accounting = pytest.importorskip("dp_accounting")


def library_epsilon(accountant: object, noise: float, count: int, delta: float, rate: float = 1.0) -> float:
    """The epsilon that an accountant of dp-accounting gives for steps with noise."""
    event = dp_accounting.GaussianDpEvent(noise)
    event = event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event)
    return float(accountant.compose(event, count).get_epsilon(delta))  # type: ignore[attr-defined]


# --- the Gaussian mechanism


def test_known_values() -> None:
    assert epsilon_of(mu=2.5, delta=1e-5) == pytest.approx(13.207, abs=1e-3)  # 100 releases with noise 4
    assert delta_of(0.0, 1.0) == pytest.approx(0.38292, abs=1e-5)  # total variation of N(0, 1) and N(1, 1)
    assert delta_of(1.0, 0.0) == 0.0
    assert epsilon_of(mu=1e-9, delta=1e-5) == 0.0


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 50.0, 500.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_mu_and_epsilon_are_inverse(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(("noise", "count"), [(4.0, 100), (1.0, 1), (30.0, 7)])
def test_the_closed_form_is_what_loss_distributions_give(noise: float, count: int) -> None:
    exact = epsilon_of_releases(noise, count, 1e-5)
    by_distribution = library_epsilon(dp_accounting.pld.PLDAccountant(), noise, count, 1e-5)
    by_divergence = library_epsilon(dp_accounting.rdp.RdpAccountant(), noise, count, 1e-5)
    assert exact == pytest.approx(by_distribution, rel=1e-3)
    assert exact <= by_distribution * (1 + 1e-9) and exact < by_divergence < 1.3 * exact


def test_delta_is_what_samples_show() -> None:
    """P(S under one data set) - e^epsilon P(S under a neighbor) for the worst set S, counted."""
    mu, epsilon, count = 1.0, 0.5, 400_000
    drawn = np.random.default_rng(1000).normal(size=count)
    worst = epsilon / mu + mu / 2  # from here on the likelihood ratio is above e^epsilon
    counted = (drawn + mu > worst).mean() - math.exp(epsilon) * (drawn > worst).mean()
    assert counted == pytest.approx(delta_of(epsilon, mu), abs=0.005)


def test_more_releases_need_more_noise() -> None:
    few, many = noise_of_releases(2.0, 1e-5, 10), noise_of_releases(2.0, 1e-5, 1000)
    assert many == pytest.approx(10 * few)
    assert epsilon_of_releases(few, 10, 1e-5) == pytest.approx(2.0, rel=1e-9)
    assert epsilon_of_releases(few, 0, 1e-5) == 0.0


# --- steps on sampled batches


def test_steps_are_accounted_with_their_sampling() -> None:
    ours = epsilon_spent(Steps(100, 0.1, 4.0), Releases(), 1e-5)
    assert ours == pytest.approx(0.983, abs=2e-3)
    assert library_epsilon(dp_accounting.rdp.RdpAccountant(), 4.0, 100, 1e-5, 0.1) == pytest.approx(1.082, abs=2e-3)
    assert epsilon_spent(Steps(100, 1.0, 4.0), Releases(), 1e-5) == pytest.approx(13.207, rel=1e-3)


def test_steps_and_releases_together() -> None:
    """Unsampled steps and releases are one Gaussian mechanism: the sum of 1 / noise^2."""
    together = epsilon_spent(Steps(50, 1.0, 20.0), Releases(10, 8.0), 1e-5)
    assert together == pytest.approx(epsilon_of(math.sqrt(50 / 400 + 10 / 64), 1e-5), rel=1e-3)


@pytest.mark.parametrize("releases", [0, 20])
def test_noise_of_steps_spends_the_budget(releases: int) -> None:
    epsilon, delta, steps, rate = 3.0, 1e-5, 400, 0.2
    released = Releases(releases, release_noise(epsilon, delta, releases, steps))
    noise = step_noise(epsilon, delta, steps, rate, released)
    assert 0.98 * epsilon < epsilon_spent(Steps(steps, rate, noise), released, delta) <= epsilon
    assert epsilon_spent(Steps(), released, delta) == pytest.approx(0.25 * epsilon if releases else 0.0, rel=1e-6)


def test_batches_have_room_for_what_is_drawn() -> None:
    room = batch_capacity(120, 32 / 120, 400, 8.0, 1e-5)
    assert 32 < room < 100
    assert batch_capacity(6000, 32 / 6000, 18800, 8.0, 1e-5) < 110
    assert batch_capacity(20, 1.0, 10, 1.0, 1e-5) == 20
    drawn = np.random.default_rng(1000).binomial(120, 32 / 120, size=1_000_000)
    assert drawn.max() < room
    assert usable_delta(1e-5) < 1e-5
