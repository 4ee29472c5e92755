"""The bound on the mutual information, by hand, and against distributions whose mutual information is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.functional.mutual_information import mutual_information_bound


def bound(loss: float, present: Any, samples: Any) -> float:
    """The bound of one learner; present: one observation, or a list of them."""
    seen = np.array(present, dtype=bool).reshape(1, -1, len(samples))
    return float(mutual_information_bound(np.array([loss]), seen, np.array([samples]))[0])


def test_all_classes_evenly_is_theorem_1() -> None:
    assert bound(0.1, [1] * 10, [12] * 10) == pytest.approx(math.log(9) - 10 * 0.1)
    assert bound(0.1, [1, 1, 1], [5, 6, 5]) == pytest.approx(math.log(2) - 0.3)


def test_observation_that_lacks_classes() -> None:
    """Of 40 samples 30 have a class of the observation: 3 pairs each, one of the same class; log 2 < H = log 3."""
    assert bound(0.1, [1, 1, 1, 0], [10] * 4) == pytest.approx(math.log(2) - 3 * 0.1 * 40 / 30)


def test_classes_that_the_learner_lacks_make_no_pair_of_the_same_class() -> None:
    """Only the first three of five classes are at both; all samples count, and the loss has five terms."""
    assert bound(0.05, [1] * 5, [8, 8, 8, 0, 0]) == pytest.approx(math.log(2) - 5 * 0.05)


def test_skewed_classes_have_no_more_than_their_entropy() -> None:
    entropy = -(0.9 * math.log(0.9) + 2 * 0.05 * math.log(0.05))
    assert entropy < math.log(2)
    assert bound(0.02, [1, 1, 1], [18, 1, 1]) == pytest.approx(entropy - 3 * 0.02)


def test_several_observations() -> None:
    """One has all of four classes, one the first three: the mean of log 3 and log 2; 3.5 pairs; 3/4 at least count."""
    found = bound(0.1, [[1, 1, 1, 1], [1, 1, 1, 0]], [10] * 4)
    assert found == pytest.approx((math.log(3) + math.log(2)) / 2 - 0.1 * 3.5 / 0.75)


def test_nothing_is_known_without_a_common_class() -> None:
    assert math.isnan(bound(0.0, [0, 0, 0], [4, 4, 4]))
    assert math.isnan(bound(0.3, [1, 1, 0], [0, 0, 9]))
    assert mutual_information_bound(np.zeros(0), np.zeros((0, 1, 3), bool), np.zeros((0, 3))).shape == (0,)


@given(
    samples=st.lists(st.integers(0, 20), min_size=3, max_size=5).filter(lambda counts: sum(counts) > 0),
    seed=st.integers(0, 2**20),
    noise=st.floats(0.01, 3.0),
)
def test_it_is_never_more_than_the_mutual_information(samples: list[int], seed: int, noise: float) -> None:
    """Representations with as many values as classes, and any discriminator: the bound holds."""
    generator = np.random.default_rng(seed)
    classes, share = len(samples), np.array(samples) / sum(samples)
    of_s, of_t = (generator.dirichlet(np.full(classes, noise), classes) for _ in range(2))  # (classes, values)
    guess = generator.uniform(0.01, 0.99, (classes, classes))  # (values of s, values of t)
    present = generator.random(classes) < 0.7
    if not (present & (share > 0)).any():
        return
    loss = sum(
        share[y] * of_s[y, s] * of_t[c, t] * -math.log(guess[s, t] if c == y else 1 - guess[s, t])
        for y in range(classes)
        for c in np.flatnonzero(present)
        for s in range(classes)
        for t in range(classes)
    )
    known = np.where(present, share, 0) / share[present].sum()  # of the samples that count
    joint = np.einsum("y,ys,yt->st", known, of_s, of_t)
    product = joint.sum(1)[:, None] * joint.sum(0)
    information = (joint * np.log(np.where(joint > 0, joint, 1) / np.where(joint > 0, product, 1))).sum()
    assert bound(loss / present.sum(), present, samples) <= information + 1e-9
