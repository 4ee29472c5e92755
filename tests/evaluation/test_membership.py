"""Membership inference: by hand, against scikit-learn, and invalid distances."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from consilience.errors import ConfigurationError, TrainingError
from consilience.evaluation.membership import Membership, infer_membership


def test_membership_by_hand() -> None:
    # Of six pairs 1-2, 1-5, 1-6, 3-5, 3-6 have the member nearer, 3-2 has not. Within 1: half the members and none of
    # the others; within 3: all members, and one of three others.
    assert infer_membership(np.array([3.0, 1.0]), np.array([5.0, 2.0, 6.0])) == Membership(5 / 6, 2 / 3, 3.0)


def test_perfect_and_reversed_separation() -> None:
    near, far = np.array([0.0, 0.5, 1.0]), np.array([2.0, 3.0])
    assert infer_membership(near, far) == Membership(1.0, 1.0, 1.0)
    turned = infer_membership(far, near)
    assert (turned.auc, turned.advantage, turned.threshold) == (0.0, 0.0, 3.0)


def test_equal_distances_are_chance() -> None:
    assert infer_membership(np.ones(4), np.ones(7)) == Membership(0.5, 0.0, 1.0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ties", (False, True))
def test_auc_and_advantage_equal_scikit_learn(seed: int, ties: bool) -> None:
    generator = np.random.default_rng(seed)
    inside, outside = generator.normal(1.0, 0.5, 30 + seed), generator.normal(1.3, 0.5, 50)
    if ties:
        inside, outside = inside.round(1), outside.round(1)
    found = infer_membership(inside, outside)
    truth, score = np.r_[np.ones(len(inside)), np.zeros(len(outside))], -np.r_[inside, outside]
    assert found.auc == pytest.approx(roc_auc_score(truth, score), abs=1e-12)
    false, true, _ = roc_curve(truth, score, drop_intermediate=False)
    assert found.advantage == pytest.approx((true - false).max(), abs=1e-12)
    told = (inside <= found.threshold).mean() - (outside <= found.threshold).mean()
    assert told == pytest.approx(found.advantage, abs=1e-12)


def test_small_means_reveal_members_and_large_ones_do_not() -> None:
    generator = np.random.default_rng(0)

    def advantage(n: int) -> float:
        samples, others = generator.normal(size=(n, 20)), generator.normal(size=(200, 20))
        center = samples.mean(0)
        distances = (np.linalg.norm(some - center, axis=1) for some in (samples, others))
        return infer_membership(*distances).advantage

    assert advantage(2) > 0.95 > 0.3 > advantage(500)


def test_invalid_distances_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no distances of others"):
        infer_membership(np.ones(2), np.ones(0))
    with pytest.raises(TrainingError, match="1 of 2 distances of members are NaN"):
        infer_membership(np.array([1.0, np.nan]), np.ones(3))
