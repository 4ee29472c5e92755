"""The mechanisms of differential privacy under attack: the real ones keep their epsilon, broken ones are caught."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from consilience.errors import ConfigurationError
from consilience.functional.noise import (
    COUNT_SCALE,
    class_sums_sensitivity,
    clip_rows,
    private_class_means,
    private_gradient,
)
from consilience.functional.upload_noise import private_upload
from consilience.leakage.mechanism_audit import Mechanism, audit_mechanism
from consilience.learner.private_training import draw_batch
from consilience.privacy.epsilon_bound import Bound, epsilon_lower_bound
from consilience.privacy.gaussian import noise_of_releases
from consilience.privacy.plan import PrivacyPlan, StepPlan
from consilience.randomness import normal, uniform

ROUNDS, WIDTH, CLIP = 4, 6, 0.5
EPSILON, DELTA = 4.0, 1e-5
NOISE = noise_of_releases(EPSILON, DELTA, ROUNDS)
REACHED = {"gaussian": 0.8, "general": 0.3}
"""The share of the claimed epsilon that the lower bound of the real mechanism reaches, at least."""


def rounds_of(release: Callable[[Tensor, Tensor], Tensor]) -> Mechanism:
    """A mechanism that makes a release in every round, each with its own noise."""
    return lambda inputs, drawn: torch.stack([release(x, n) for x, n in zip(inputs, drawn, strict=True)])


# --- a whole upload: neighbors are any two data sets of a learner


def canaries() -> tuple[Tensor, Tensor]:
    """Two uploads in opposite directions, far longer than the clip, whose sign changes from round to round."""
    one = torch.zeros(ROUNDS, WIDTH, dtype=torch.float64)
    one[:, 0], one[:, 3] = 10.0 * CLIP, 2.0 * CLIP
    signs = torch.tensor([(-1.0) ** r for r in range(ROUNDS)], dtype=torch.float64)
    return signs[:, None] * one, -signs[:, None] * one


def upload(x: Tensor, drawn: Tensor, noise: float = NOISE) -> Tensor:
    found = private_upload({"a": x[:4], "b": x[4:]}, CLIP, noise, drawn)
    return torch.cat([found["a"], found["b"]])


def too_little_noise(inputs: Tensor, drawn: Tensor) -> Tensor:
    return rounds_of(lambda x, n: upload(x, n, NOISE / 4))(inputs, drawn)


def unclipped(inputs: Tensor, drawn: Tensor) -> Tensor:
    return inputs + 2 * CLIP * NOISE * drawn


def the_same_noise_in_every_round(inputs: Tensor, drawn: Tensor) -> Tensor:
    return rounds_of(upload)(inputs, drawn[:1].expand(ROUNDS, WIDTH))


def residual_without_noise(inputs: Tensor, drawn: Tensor) -> Tensor:
    """What was not sent, noise included, is added to the next upload after its own clip and noise."""
    residual, sent = torch.zeros_like(inputs[0]), []
    for x, n in zip(inputs, drawn, strict=True):
        sent.append(upload(x, n) + residual)
        residual = residual + x - sent[-1]
    return torch.stack(sent)


def audit(mechanism: Mechanism, bound: Bound = "gaussian", seed: int = 0, trials: int = 20_000) -> float:
    return audit_mechanism(mechanism, canaries(), (ROUNDS, WIDTH), DELTA, bound=bound, seed=seed, trials=trials).epsilon


@pytest.mark.parametrize("bound", ("gaussian", "general"))
@pytest.mark.parametrize("seed", range(5))
def test_private_uploads_keep_their_epsilon(bound: Bound, seed: int) -> None:
    assert REACHED[bound] * EPSILON < audit(rounds_of(upload), bound, seed) <= EPSILON


@pytest.mark.parametrize("bound", ("gaussian", "general"))
@pytest.mark.parametrize("broken", (too_little_noise, unclipped, the_same_noise_in_every_round, residual_without_noise))
def test_broken_uploads_are_caught(broken: Mechanism, bound: Bound) -> None:
    assert audit(broken, bound) > 1.2 * EPSILON


# --- class means: neighbors differ in one sample, which contributes nothing instead

CLASSES, SAMPLES, ENTRIES = 2, 20, 1
SENSITIVITY = class_sums_sensitivity(CLIP, ENTRIES, 1)
DEVIATION = noise_of_releases(EPSILON, DELTA, ROUNDS) * SENSITIVITY
MEANS_NOISE = ENTRIES * CLASSES * (WIDTH + 1)


def samples() -> tuple[Tensor, Tensor]:
    """Values of samples with their marks of membership beside them, with and without the canary, (rows, WIDTH + C)."""
    values = torch.zeros(SAMPLES, WIDTH, dtype=torch.float64)
    values[:, 1] = 0.3 * CLIP
    values[0] = 0.0
    values[0, 0] = 10.0 * CLIP
    marks = torch.zeros(SAMPLES, CLASSES, dtype=torch.float64)
    marks[:, 0] = 1.0
    there = torch.cat([values, marks], 1)
    gone = there.clone()
    gone[0] = 0.0
    return gone, there


def class_means(given: Tensor, drawn: Tensor, deviation: float = DEVIATION, clip: float = CLIP) -> Tensor:
    values, member = given[:, :WIDTH], given[None, :, WIDTH:]
    means, counts = private_class_means(values * (CLIP / clip), member, clip, deviation, drawn, 2)
    return torch.cat([(means * counts[..., None]).flatten(), counts.flatten()])


def audit_means(release: Callable[[Tensor, Tensor], Tensor], seed: int = 0) -> float:
    def mechanism(given: Tensor, drawn: Tensor) -> Tensor:
        return torch.cat([release(given, n) for n in drawn])

    return audit_mechanism(mechanism, samples(), (ROUNDS, MEANS_NOISE), DELTA, seed=seed).epsilon


@pytest.mark.parametrize("seed", range(3))
def test_private_class_means_keep_their_epsilon(seed: int) -> None:
    assert 0.5 * EPSILON < audit_means(class_means, seed) <= EPSILON


def test_class_means_with_too_little_noise_are_caught() -> None:
    assert audit_means(lambda given, n: class_means(given, n, DEVIATION / 4)) > 1.2 * EPSILON


def test_class_means_that_are_not_clipped_are_caught() -> None:
    def unclipped_sums(given: Tensor, drawn: Tensor) -> Tensor:
        values, member = given[:, :WIDTH], given[:, WIDTH:]
        return (member.T @ values).flatten() + DEVIATION * drawn[: CLASSES * WIDTH]

    assert audit_means(unclipped_sums) > 1.2 * EPSILON


# --- a step of DP-SGD on all samples: neighbors as above


def gradients() -> tuple[Tensor, Tensor]:
    rows = torch.zeros(SAMPLES, WIDTH, dtype=torch.float64)
    rows[:, 2] = 0.2 * CLIP
    rows[0] = 0.0
    gone = rows.clone()
    rows[0, 5] = 30.0 * CLIP
    return gone, rows


def audit_steps(noise: float, clip: float = CLIP, seed: int = 0) -> float:
    drawn, expected = torch.ones(SAMPLES, dtype=torch.float64), torch.tensor(float(SAMPLES), dtype=torch.float64)
    multiplier = torch.tensor(noise * CLIP / clip, dtype=torch.float64)

    def mechanism(given: Tensor, normal: Tensor) -> Tensor:
        return torch.cat([private_gradient(given, drawn, clip, multiplier, n, expected) for n in normal])

    return audit_mechanism(mechanism, gradients(), (ROUNDS, WIDTH), DELTA, seed=seed).epsilon


@pytest.mark.parametrize("seed", range(3))
def test_private_steps_keep_their_epsilon(seed: int) -> None:
    assert 0.8 * EPSILON < audit_steps(NOISE, seed=seed) <= EPSILON


def test_broken_steps_are_caught() -> None:
    assert audit_steps(NOISE / 4) > 1.2 * EPSILON
    assert audit_steps(NOISE, clip=10 * CLIP) > 1.2 * EPSILON  # noise for one clip, and clipped to another


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"trials is 39; .* 40 or more"):
        audit(rounds_of(upload), trials=39)


# --- samples with an epsilon of their own, which are drawn less often than the others

OWN, TRIALS, DRAWS = 1.0, 8000, 8
PLAN = PrivacyPlan("training", 8.0, DELTA, CLIP, DRAWS, releases=True)


@cache
def planned_steps() -> StepPlan:
    pytest.importorskip("dp_accounting")
    return PLAN.for_steps(SAMPLES, 10, 2 * DRAWS)


def log_ratio(seen: Tensor, rate: float, noise: float) -> Tensor:
    """How much likelier an output is with the canary, which is drawn by chance and moves it by 1, (trials,)."""
    shift = (2 * seen - 1) / (2 * noise**2)
    return torch.log1p(rate * torch.expm1(shift.clamp(max=600.0))).sum(-1)


def steps_seen(share: float, there: bool) -> Tensor:
    """What every step shows in the canary's direction, in units of the clip, (trials, steps)."""
    rows = gradients()[there]
    rate = torch.full((SAMPLES,), planned_steps().rate, dtype=torch.float64)
    rate[0] *= share
    size = (TRIALS, planned_steps().planned, SAMPLES)
    chance = torch.from_numpy(uniform("draws", there, np.arange(math.prod(size)))).reshape(size)
    positions, drawn = draw_batch(chance, rate, planned_steps().capacity)
    drawn_noise = torch.from_numpy(normal("noise", there, np.arange(TRIALS * planned_steps().planned * WIDTH)))
    noise, expected = (torch.tensor(x, dtype=torch.float64) for x in (planned_steps().noise, planned_steps().expected))

    def one(positions: Tensor, drawn: Tensor, noise_drawn: Tensor) -> Tensor:
        return private_gradient(rows[positions], drawn, CLIP, noise, noise_drawn, expected)[5]

    found = vmap(vmap(one))(positions, drawn, drawn_noise.reshape(TRIALS, planned_steps().planned, WIDTH))
    return found * expected / CLIP


def releases_seen(share: float, there: bool) -> Tensor:
    """The noised sums and counts of every upload along what the canary adds to them, (trials, uploads)."""
    values, entering = samples()[there][:, :WIDTH], torch.ones(TRIALS, DRAWS, SAMPLES, dtype=torch.float64)
    chance = torch.from_numpy(uniform("entering", there, np.arange(TRIALS * DRAWS))).reshape(TRIALS, DRAWS)
    entering[..., 0] = (chance < share).double() * there
    scale = COUNT_SCALE * CLIP
    sums = torch.einsum("tdr,rw->tdw", entering, clip_rows(values, CLIP))
    released = torch.cat([sums, scale * entering.sum(-1, keepdim=True)], -1)
    drawn = torch.from_numpy(normal("release", there, np.arange(released.numel()))).reshape(released.shape)
    released = released + PLAN.noise * SENSITIVITY * drawn
    alone = torch.cat([clip_rows(samples()[1][0, :WIDTH], CLIP), torch.tensor([scale], dtype=torch.float64)])
    others = torch.cat([clip_rows(samples()[0][:, :WIDTH], CLIP).sum(0), torch.tensor([scale * (SAMPLES - 1)])])
    return (released - others) @ alone / alone.square().sum()


def audit_own(drawn_with: float) -> float:
    """A lower bound of epsilon of a sample that is drawn with this share of the others' probabilities."""
    scores = []
    for there in (True, False):
        of_steps = log_ratio(steps_seen(drawn_with, there), drawn_with * planned_steps().rate, planned_steps().noise)
        of_uploads = log_ratio(releases_seen(drawn_with, there), drawn_with, PLAN.noise)
        scores.append((of_steps + of_uploads).numpy())
    return epsilon_lower_bound(scores[0], scores[1], DELTA).epsilon


def test_a_sample_with_a_budget_of_its_own_keeps_it() -> None:
    """And would not if it were drawn like the others: the attacker then shows a larger epsilon than its own."""
    share = PLAN.share_of(OWN, planned_steps())
    assert PLAN.spent(DRAWS, planned_steps().planned, planned_steps(), own=OWN) <= OWN
    assert audit_own(share) <= OWN
    assert OWN < 1.5 * OWN < audit_own(1.0) <= PLAN.epsilon
