"""LiRA: on Gaussians whose ROC is known, by hand, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from sklearn.metrics import roc_auc_score

from consilience.errors import ConfigurationError, TrainingError
from consilience.evaluation.likelihood_ratio import Form, likelihood_ratio_scores
from consilience.evaluation.roc import roc_of

FORMS: tuple[Form, ...] = ("online", "offline")


def simulated(models: int, samples: int, shift: float, several: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Statistics that every sample has a level of its own in, and that members have `shift` deviations more of."""
    generator = np.random.default_rng(1000)
    member = generator.random((models, samples)) < 0.5
    level, scale = generator.normal(0, 20, samples), generator.uniform(0.5, 2, samples)
    noise = generator.normal(size=(models, samples, several))
    found = level[:, None] + scale[:, None] * (noise + shift * member[..., None])
    return found[..., 0] if several == 1 else found, member


def auc_of(scores: np.ndarray, member: np.ndarray) -> float:
    return roc_of(scores[member], scores[~member]).auc


@pytest.mark.parametrize("form", FORMS)
def test_roc_of_gaussians_is_reached(form: Form) -> None:
    # A sample's level hides the shift of 1.5 from a global threshold; with its own Gaussians the attack reaches nearly
    # the ROC of two Gaussians that are 1.5 deviations apart: AUC 0.856, and a TPR of 20.4 % at an FPR of 1 %.
    statistics, member = simulated(64, 600, 1.5)
    assert auc_of(statistics, member) == pytest.approx(0.5, abs=0.05)
    scores = likelihood_ratio_scores(statistics, member, form)
    found = roc_of(scores[member], scores[~member])
    best = float(ndtr(1.5 / np.sqrt(2)))
    assert best - 0.03 < found.auc < best + 0.005
    rate = found.tpr_at_fpr[1]
    assert rate is not None and 0.12 < rate < float(ndtr(1.5 + ndtri(0.01))) + 0.02


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("several", (1, 4))
def test_no_signal_is_chance(form: Form, several: int) -> None:
    statistics, member = simulated(32, 400, 0.0, several)
    assert auc_of(likelihood_ratio_scores(statistics, member, form), member) == pytest.approx(0.5, abs=0.02)


def test_several_statistics_add_up() -> None:
    # Four independent views of a shift of 0.75 are one of 1.5.
    statistics, member = simulated(64, 400, 0.75, 4)
    one = auc_of(likelihood_ratio_scores(statistics[..., 0], member), member)
    four = auc_of(likelihood_ratio_scores(statistics, member), member)
    assert one == pytest.approx(float(ndtr(0.75 / np.sqrt(2))), abs=0.03)
    assert four == pytest.approx(float(ndtr(1.5 / np.sqrt(2))), abs=0.03)


def test_a_different_spread_of_members_is_found_online_only() -> None:
    generator = np.random.default_rng(7)
    member = generator.random((64, 300)) < 0.5
    statistics = generator.normal(size=(64, 300)) * np.where(member, 0.2, 1.0)
    assert auc_of(likelihood_ratio_scores(statistics, member), member) > 0.8
    assert auc_of(likelihood_ratio_scores(statistics, member, "offline"), member) == pytest.approx(0.5, abs=0.03)


def test_the_target_is_not_among_its_own_shadow_models() -> None:
    # The statistics of one model are made extreme: other models' scores of a sample change, its own Gaussians do not.
    statistics, member = simulated(64, 50, 1.0)
    moved = statistics.copy()
    moved[3] += 1e3
    before, after = (likelihood_ratio_scores(s, member, "offline")[3] for s in (statistics, moved))
    shift = (after - before)[:, None]
    assert (shift > 100).all()
    others = np.arange(64) != 3
    outside = statistics[others]
    deviation = [outside[:, i][~member[others][:, i]].std(ddof=1) for i in range(50)]
    own = np.minimum(member[others].sum(0), (~member[others]).sum(0)) >= 16
    assert own.any()
    assert (1e3 / shift[own, 0]) == pytest.approx(np.array(deviation)[own], rel=1e-3)


def test_samples_with_too_few_shadow_models_have_no_score() -> None:
    statistics, member = simulated(32, 20, 1.0)
    member[:, 4] = False
    member[0, 4] = True
    scores = likelihood_ratio_scores(statistics, member)
    assert np.isnan(scores[:, 4]).all() and np.isfinite(np.delete(scores, 4, axis=1)).all()


def test_refusals() -> None:
    statistics, member = simulated(16, 20, 1.0)
    with pytest.raises(ConfigurationError, match=r"7 shadow models; the attack needs 8 or more"):
        likelihood_ratio_scores(statistics[:7], member[:7])
    with pytest.raises(ConfigurationError, match="all samples are members"):
        likelihood_ratio_scores(statistics, np.ones_like(member))
    with pytest.raises(ConfigurationError, match="all samples are others"):
        likelihood_ratio_scores(statistics, np.zeros_like(member))
    with pytest.raises(ConfigurationError, match=r"statistics have the shape \(16, 20\)"):
        likelihood_ratio_scores(statistics, member[:, :3])
    with pytest.raises(TrainingError, match="1 of 320 statistics are NaN"):
        likelihood_ratio_scores(np.where(np.arange(320).reshape(16, 20) == 5, np.nan, statistics), member)
    with pytest.raises(ConfigurationError, match=r"unknown form 'on-line'.*online"):
        likelihood_ratio_scores(statistics, member, "on-line")  # type: ignore[arg-type]


# --- ROC


def test_roc_by_hand() -> None:
    found = roc_of(np.array([3.0, 1.0]), np.array([2.0, 0.0, 0.0]))
    expected = ((0, 0), (0, 0.5), (1 / 3, 0.5), (1 / 3, 1), (1, 1))
    assert np.array(found.curve) == pytest.approx(np.array(expected))
    assert found.auc == pytest.approx(5 / 6) and found.balanced_accuracy == pytest.approx(5 / 6)
    assert found.tpr_at_fpr == (None, None)  # 3 others cannot tell 1 % from 0 %


@pytest.mark.parametrize("ties", (False, True))
def test_auc_equals_scikit_learn(ties: bool) -> None:
    generator = np.random.default_rng(3)
    inside, outside = generator.normal(1, 1, 300), generator.normal(0, 1, 2000)
    if ties:
        inside, outside = inside.round(1), outside.round(1)
    truth = np.r_[np.ones(300), np.zeros(2000)]
    found = roc_of(inside, outside)
    assert found.auc == pytest.approx(roc_auc_score(truth, np.r_[inside, outside]), abs=1e-12)
    at_most_two = inside > np.sort(outside)[-3]
    assert found.tpr_at_fpr[0] == pytest.approx(at_most_two.mean())
    assert found.curve[0] == (0, 0) and found.curve[-1] == (1, 1) and len(found.curve) <= 200


def test_roc_refuses_one_kind_of_samples_and_nan() -> None:
    with pytest.raises(ConfigurationError, match=r"no scores of others; .* both kinds"):
        roc_of(np.ones(3), np.array([]))
    with pytest.raises(ConfigurationError, match="no scores of members"):
        roc_of(np.array([]), np.ones(3))
    with pytest.raises(TrainingError, match="1 of 2 scores of members are NaN"):
        roc_of(np.array([np.nan, 1]), np.ones(3))
