"""Private runs: engines agree, the budget is spent and ends uploads, noise is there, what cannot be is refused."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consilience import Result, simulate
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Exchange, Received, Scope, State, View
from consilience.exchanges.prototypes import Prototypes
from consilience.exchanges.weights import Weights
from consilience.learner.batches import LearnerKey
from consilience.learner.noise_source import SIMULATED
from consilience.learner.private_training import draw_batch
from consilience.method import Method, Role
from consilience.models import SplitModel
from consilience.privacy.gaussian import epsilon_of_releases
from consilience.simulation.setup.privacy import check_private_exchanges

SMALL: dict[str, Any] = {"learners": 3, "rounds": 3, "workers": 0, "seed": 1000}
BUDGET: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5}
UNEQUAL: dict[str, Any] = {"partition": "shares(0.5, 0.3, 0.2)"}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=150, test=80)


def frozen_encoder() -> SplitModel:
    """A model whose features never change."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())
    features.requires_grad_(False)
    return SplitModel(features, nn.Linear(12, 10), bound=1.0)


def normalizing() -> SplitModel:
    """A model that mixes the samples of a batch."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Tanh())
    return SplitModel(features, nn.Linear(12, 10), bound=1.0)


def batch_statistics() -> SplitModel:
    """An encoder without weights that change, which always uses the statistics of the batch."""
    features = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False, track_running_stats=False), nn.Tanh())
    return SplitModel(features, nn.Linear(64, 10), bound=1.0)


def run(data: Dataset, private: str, method: str | Method = "fedproto", **more: Any) -> Result:
    """A small private run."""
    model = {"model": frozen_encoder} if private == "fixed-encoder" else {}
    return simulate(method=method, data=data, private=private, **{**SMALL, **BUDGET, **model, **more})  # type: ignore[arg-type]


METHODS = [
    ("upload", "fedproto"),
    ("upload", "consilience"),
    ("upload", "fedavg-1bit"),
    ("upload", "federated-distillation"),
    ("training", "fedavg"),
    ("training", "fedavg-1bit"),
    ("training", "representation-sharing"),
    ("training", "representation-sharing:dimensions=0.5"),
    ("training", "federated-distillation"),
    ("fixed-encoder", "fedproto"),
    ("fixed-encoder", "representation-sharing"),
]


# --- engines and restarts


@pytest.mark.parametrize("split", [{}, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(("private", "method"), METHODS)
def test_loop_equals_stack(private: str, method: str, split: dict[str, Any], data: Dataset) -> None:
    more = {"precision": "float64", "epochs": 2, **split}
    loop, stack = (run(data, private, method, engine=engine, **more) for engine in ("loop", "stack"))
    for metric in ("loss.cross_entropy", "accuracy", "epsilon", "bytes.up"):
        np.testing.assert_allclose(loop.history[metric], stack.history[metric], rtol=1e-9, atol=1e-9, err_msg=metric)
    for who in range(3):
        pairs = zip(loop.model(who).parameters(), stack.model(who).parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs)


@pytest.mark.parametrize("engine", ["loop", "stack"])
@pytest.mark.parametrize("private", ["upload", "training"])
def test_resuming_gives_the_same_bits(private: str, engine: str, data: Dataset, tmp_path: Path) -> None:
    def stop(method: str, round_: int, rounds: int, history: object) -> None:
        if round_ == 2:
            os.kill(os.getpid(), signal.SIGINT)

    more: dict[str, Any] = {"engine": engine, "rounds": 4, "private_uploads": 4}
    whole = run(data, private, out=tmp_path / "whole", **more)
    parts = run(data, private, out=tmp_path / "parts", on_round=stop, **more)
    assert not parts.finished
    parts = simulate(data=data, resume=tmp_path / "parts")
    assert parts.finished and parts.summary()["privacy"] == whole.summary()["privacy"]
    for metric in (m for m in whole.history if not m.startswith("seconds.")):
        assert np.array_equal(whole.history[metric], parts.history[metric], equal_nan=True), metric
    read = Result.load(tmp_path / "parts")
    assert read.summary()["privacy"] == whole.summary()["privacy"]


def test_same_seed_same_bits_other_seed_other_noise(data: Dataset) -> None:
    one, again, other = (run(data, "training", "fedavg", seed=seed) for seed in (1000, 1000, 1001))
    assert np.array_equal(one.history["loss.cross_entropy"], again.history["loss.cross_entropy"])
    assert not np.array_equal(one.history["loss.cross_entropy"], other.history["loss.cross_entropy"])


# --- the budget


@pytest.mark.parametrize(("private", "method"), METHODS)
def test_the_whole_budget_is_spent_and_not_more(private: str, method: str, data: Dataset) -> None:
    result = run(data, private, method)
    spent = result.history["epsilon"]
    assert (np.diff(spent, axis=0) >= 0).all() and (spent[-1] <= 4.0).all()
    assert (spent[-1] > 3.9).all(), "noise is not larger than it must be"
    summary = result.summary()["privacy"]
    assert summary["epsilon"] == spent.max() and summary["delta"] == 1e-5 and summary["target"] == 4.0
    assert "data sets" in summary["neighboring"] and summary["private"] == private


def test_uploads_end_with_the_budget_and_learning_goes_on(data: Dataset) -> None:
    result = run(data, "upload", "fedavg", rounds=5, private_uploads=2, private_clip=0.01)
    sent, loss = result.history["bytes.up"], result.history["loss.cross_entropy"]
    assert (sent[:2] > 0).all() and (sent[2:] == 0).all()
    assert np.allclose(result.history["epsilon"][1:], 4.0, rtol=1e-6)
    assert (loss[4] < loss[2]).all()


def test_learners_that_are_offline_spend_less(data: Dataset) -> None:
    result = run(data, "upload", rounds=6, offline=0.5)
    uploads = (result.history["bytes.up"][:, 0] > 0).sum(0) + 1  # and one before the first round
    plan = result.summary()["privacy"]
    assert plan["uploads"] == 7 and (uploads < 7).all()
    noise = np.sqrt(7) / _mu(4.0)
    expected = [epsilon_of_releases(noise, int(count), 1e-5) for count in uploads]
    assert result.history["epsilon"][-1, 0].tolist() == pytest.approx(expected)


def _mu(epsilon: float) -> float:
    from consilience.privacy.gaussian import mu_of

    return mu_of(epsilon, 1e-5)


def test_a_method_that_uploads_nothing_needs_no_noise(data: Dataset) -> None:
    alone, private = simulate(method="independent", data=data, **SMALL), run(data, "training", "independent")
    assert np.array_equal(alone.history["loss.cross_entropy"], private.history["loss.cross_entropy"])
    assert "privacy" not in private.summary() and "epsilon" not in private.history


def test_without_privacy_nothing_is_recorded(data: Dataset) -> None:
    result = simulate(method="fedproto", data=data, **SMALL)
    assert "privacy" not in result.summary() and "epsilon" not in result.history


def test_more_noise_for_a_smaller_budget(data: Dataset) -> None:
    """With a huge budget there is hardly any noise, and private training learns what plain training does."""
    generous, strict = (run(data, "training", "fedavg", rounds=10, epsilon=e, lr=3e-3) for e in (1e4, 0.5))
    assert generous.accuracy.mean() > 60 and strict.accuracy.mean() < 40


# --- what is uploaded


def test_every_sample_is_drawn_with_its_probability() -> None:
    """Poisson sampling: independent draws, with the rate that the accounting assumes."""
    samples, rate, steps = 60, 0.25, 4000
    drawn = np.zeros((steps, samples))
    for step in range(steps):
        chance = SIMULATED.uniform("test", LearnerKey(1000, 0), 1, step, samples)
        positions, taken = draw_batch(chance, torch.tensor(rate), 45)
        drawn[step, positions[taken].numpy()] = 1
    assert np.abs(drawn.mean(0) - rate).max() < 5 * np.sqrt(rate * (1 - rate) / steps)
    pairs = np.corrcoef(drawn.T) - np.eye(samples)
    assert np.abs(pairs).max() < 6 / np.sqrt(steps), "samples are drawn independently of each other"
    assert drawn.sum(1).var() == pytest.approx(samples * rate * (1 - rate), rel=0.1), "batches differ in size"


def test_a_sample_moves_a_step_by_the_clip_at_most(data: Dataset) -> None:
    """The first step of SGD with all samples, with and without one of them, without noise."""
    clip, lr = 0.5, 0.1
    settings: dict[str, Any] = {
        "learners": 1,
        "rounds": 1,
        "batch_size": 150,
        "optimizer": "sgd",
        "lr": lr,
        "seed": 1000,
    }
    weights = []
    for targets in (data.targets, np.where(np.arange(150) == 7, (data.targets + 1) % 10, data.targets)):
        changed = replace(data, targets=targets)
        result = simulate(
            method="fedavg", data=changed, private="training", epsilon=1e5, private_clip=clip, workers=0,
            precision="float64", **settings,
        )  # fmt: skip
        weights.append(torch.cat([p.detach().flatten() for p in result.model().parameters()]))
    moved = float((weights[0] - weights[1]).norm())
    assert 0 < moved <= 2 * clip * lr / 150 * (1 + 1e-6), "one sample is replaced: at most twice the clip"


def test_a_class_too_small_for_its_noise_is_not_shared(data: Dataset) -> None:
    """Fifty samples of each learner among ten classes are too few for this budget: everybody learns alone."""
    private, alone = (
        run(data, "fixed-encoder", epsilon=0.5),
        simulate(method="independent", data=data, model=frozen_encoder, **SMALL),
    )
    assert np.array_equal(private.history["loss.cross_entropy"], alone.history["loss.cross_entropy"])
    assert (private.history["loss.prototypes"] == 0).all()


@pytest.mark.parametrize("private", ["upload", "training", "fixed-encoder"])
def test_samples_that_are_never_shared(private: str, data: Dataset) -> None:
    """Everybody marks everything: uploads are noise alone, or nothing."""
    everything = {"all": {"learners": "0-2", "never_share": list(range(10))}}
    result = run(data, private, groups=everything)
    assert np.isfinite(result.history["loss.cross_entropy"]).all()
    if private != "upload":
        assert (result.history["loss.prototypes"] == 0).all()


# --- refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"epsilon": float("inf")}, "epsilon is inf"),
        ({"epsilon": None}, "epsilon is not set"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"private_clip": -1.0}, "private_clip is -1.0"),
        ({"private_clip": float("inf")}, "private_clip is inf"),
        ({"private_uploads": 0}, "private_uploads is 0"),
        ({"private": "some"}, "private is 'some'"),
        ({"private": "none"}, "no noise would be added"),
    ],
)
def test_impossible_settings(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_config({"private": "upload", "epsilon": 1.0} | wrong)


@pytest.mark.parametrize(
    ("private", "method", "more", "message"),
    [
        ("training", "consilience", {}, "calibrated by the class shares.*objective=cross-entropy"),
        ("training", "fedavg", {"model": normalizing}, "BatchNorm.*lenet5"),
        ("training", "two-stage", {"model": "lenet5"}, "compares samples.*private='upload'"),
        ("training", "flesd", {"learners": 4, "model": "cnn"}, "private='upload'"),
        ("upload", "split-learning", {"model": "lenet5"}, "split learning sends.*fedavg or fedproto"),
        (
            "upload",
            "fedproto",
            {"partners": "useful(1)", "validation": 0.2},
            "choose by their validation samples.*similar",
        ),
        (
            "upload",
            "representation-sharing",
            {"choose": "useful", "validation": 0.2},
            "choose by their validation samples.*relevant",
        ),
        ("fixed-encoder", "fedproto", {"model": "mlp"}, "training changes the encoder.*requires_grad=False"),
        ("fixed-encoder", "fedproto", {"model": batch_statistics}, "BatchNorm.*mixes those of a batch"),
        ("fixed-encoder", "fedavg", {}, "'weights' uploads what was trained.*fedproto"),
        ("fixed-encoder", "federated-distillation", {}, "'logits' uploads what was trained"),
    ],
)
def test_methods_that_cannot_be_private_that_way(
    private: str, method: str, more: dict[str, Any], message: str, data: Dataset
) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        run(data, private, method, **more)


def test_a_learner_with_several_roles_is_refused(data: Dataset) -> None:
    roles = {"first": Role(exchanges=(Weights(),)), "second": Role(exchanges=(Weights(),))}
    twice = Method("twice", roles, usual=("first", "second"))
    with pytest.raises(ConfigurationError, match="learner 0 has several roles"):
        run(data, "training", twice)


def test_uploads_that_no_private_step_precedes_are_refused(data: Dataset) -> None:
    """Their accounting would end at epsilon 0."""
    with pytest.raises(ConfigurationError, match="epsilon would be 0"):
        run(data, "training", Method("idle", {"learner": Role(exchanges=(Weights(),), epochs=0)}))


def test_own_class_means_without_noise_in_the_loss_are_refused(data: Dataset) -> None:
    """What stays with the learner has no noise, and every gradient would depend on all samples."""
    role = Role(exchanges=(Weights(), Prototypes(weight=1.0, scope="oneself", name="own")))
    with pytest.raises(ConfigurationError, match="'own' keeps values of the samples without noise"):
        run(data, "training", Method("own-means", {"learner": role}))


@dataclass(frozen=True)
class Remembering(Exchange):
    """Uploads nothing, and looks at all samples before a round."""

    name: str = field(default="remembering", kw_only=True)
    scope: Scope = "oneself"

    def on_round_start(self, state: State, view: View, received: Received) -> State:
        return state


def test_a_look_at_all_samples_before_steps_is_refused() -> None:
    role = Role(exchanges=(Weights(), Remembering()))
    with pytest.raises(ConfigurationError, match="'remembering' looks at all samples before steps"):
        check_private_exchanges(role, "training")


def test_a_large_delta_is_warned_of(data: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="consilience"):
        run(data, "upload", delta=0.05, rounds=1)
    assert "delta is 0.05, and a learner has 50 samples" in caplog.text
