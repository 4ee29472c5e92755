"""Samples with a privacy budget of their own: drawn as planned, on both engines, within their budget, or refused."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consilience import Result, simulate
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.data.description import dataset_sha256
from consilience.data.local_datasets import make_local_datasets
from consilience.errors import ConfigurationError, DataError
from consilience.learner.batches import LearnerKey
from consilience.learner.initial_state import common_values, first_state
from consilience.learner.learner import Learner
from consilience.learner.noise_source import HashedNoise
from consilience.learner.private_uploads import ENTERING
from consilience.learner.session import LearnerSession, LocalSamples
from consilience.methods import build_method
from consilience.models import SplitModel
from consilience.simulation.setup.sample_budgets import sample_epsilons
from consilience.simulation.setup.setup import Setup, build_setup

dp_accounting = pytest.importorskip("dp_accounting")

SMALL: dict[str, Any] = {"learners": 3, "rounds": 3, "workers": 0, "seed": 1000, "epsilon": 8.0}
UNEQUAL: dict[str, Any] = {"partition": "shares(0.5, 0.3, 0.2)"}
LEVELS: dict[str, Any] = {"groups": {"some": {"learners": "0-1", "sample_epsilons": {3: 1.0, "5": 0.0, 7: 50.0}}}}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=150, test=80)


def frozen_encoder() -> SplitModel:
    """A model whose features never change."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())
    features.requires_grad_(False)
    return SplitModel(features, nn.Linear(12, 10), bound=1.0)


def run(data: Dataset, private: str = "training", method: str = "representation-sharing", **more: Any) -> Result:
    """A small private run."""
    model = {"model": frozen_encoder} if private == "fixed-encoder" else {}
    return simulate(method=method, data=data, private=private, **{**SMALL, **model, **more})  # type: ignore[arg-type]


def same(one: Result, other: Result, atol: float = 0.0) -> None:
    for metric in ("loss.cross_entropy", "accuracy", "epsilon", "bytes.up"):
        np.testing.assert_allclose(one.history[metric], other.history[metric], rtol=atol, atol=atol, err_msg=metric)
    for who in range(3):
        pairs = zip(one.model(who).parameters(), other.model(who).parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=atol, atol=atol) for a, b in pairs)


# --- engines and restarts


@pytest.mark.parametrize("split", [{}, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("private", "method"),
    [("training", "fedavg"), ("training", "representation-sharing"), ("fixed-encoder", "representation-sharing")],
)
def test_loop_equals_stack(private: str, method: str, split: dict[str, Any], data: Dataset) -> None:
    more = {"precision": "float64", "epsilon": 8.0 if private == "training" else 100.0, **split}
    plain = run(data, private, method, engine="loop", **more)
    more |= LEVELS
    loop, stack = (run(data, private, method, engine=engine, **more) for engine in ("loop", "stack"))
    same(loop, stack, atol=1e-9)
    assert loop.summary()["privacy"] == stack.summary()["privacy"]
    changed = "loss.cross_entropy" if private == "training" else "loss.prototypes"
    assert not np.array_equal(plain.history[changed], loop.history[changed]), "some samples are drawn less often"


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_same_seed_and_resumed_runs_have_the_same_bits(engine: str, data: Dataset, tmp_path: Path) -> None:
    def stop(method: str, round_: int, rounds: int, history: object) -> None:
        if round_ == 2:
            os.kill(os.getpid(), signal.SIGINT)

    whole = run(data, engine=engine, out=tmp_path / "whole", **LEVELS)
    parts = run(data, engine=engine, out=tmp_path / "parts", on_round=stop, **LEVELS)
    assert not parts.finished
    parts = simulate(data=data, resume=tmp_path / "parts")
    same(whole, parts)
    assert parts.finished and parts.summary()["privacy"] == whole.summary()["privacy"]
    assert Result.load(tmp_path / "parts").summary()["privacy"] == whole.summary()["privacy"]


def test_budgets_that_are_not_smaller_change_nothing(data: Dataset) -> None:
    """To the bit; a run without budgets of single samples says nothing of them."""
    plain = run(data)
    larger = run(replace(data, sample_epsilons=np.where(data.targets == 1, 8.0, np.inf)))
    same(plain, larger)
    assert "sample_epsilons" not in plain.summary()["privacy"] and "sample_epsilons" not in larger.summary()["privacy"]


# --- how often samples are drawn


def setup_of(data: Dataset, private: str, method: str, **more: Any) -> Setup:
    """What is decided before the first round of a run with one learner."""
    settings = {**SMALL, "learners": 1, "private": private, "method": {"name": method}, "model": "mlp", **more}
    model = frozen_encoder if private == "fixed-encoder" else "mlp"
    return build_setup(make_config(settings), build_method(method, {}), data, [model])


class OnlyDraws(HashedNoise):
    """The draws of a simulation without its noise, which would take most of the time."""

    def normal(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.float64)


def session_of(setup: Setup) -> LearnerSession:
    """The only learner of a setup at work, as the loop engine has it."""
    (plan,) = setup.cohorts.plans
    learner, members = Learner(plan.spec), plan.members
    state = first_state(learner, 1000, 0, common_values(learner, 1000), np.ones(10))
    inputs, targets = torch.from_numpy(setup.data.train.inputs), torch.from_numpy(setup.data.train.targets)
    samples = LocalSamples(inputs, targets, members.samples(0), members.shareable(0), True, members.draw_share(0))
    return LearnerSession(learner, state, LearnerKey(1000, 0), samples, plan.work, OnlyDraws())


def accounted(setup: Setup, own: float, share: float) -> float:
    """The epsilon of the planned steps and uploads for a sample that is drawn with this share, by dp-accounting."""
    assert setup.privacy is not None
    (plan,), asked = setup.cohorts.plans, setup.privacy
    assert plan.spec.privacy is not None
    found = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4 * max(own, 1))
    if plan.spec.privacy.steps:
        (steps,) = plan.spec.privacy.steps.values()
        gaussian = dp_accounting.GaussianDpEvent(steps.noise)
        found.compose(dp_accounting.PoissonSampledDpEvent(steps.rate * share, gaussian), steps.planned)
    if np.isfinite(asked.noise):
        gaussian = dp_accounting.GaussianDpEvent(asked.noise)
        found.compose(dp_accounting.PoissonSampledDpEvent(share, gaussian), asked.uploads)
    return float(found.get_epsilon(asked.delta))


def check_rates(counted: np.ndarray, planned: np.ndarray, trials: int) -> None:
    """Each sample's count, and those of all samples of one probability together."""
    deviation = np.sqrt(planned * (1 - planned) / trials)
    assert (np.abs(counted / trials - planned) <= 5 * deviation).all()
    for rate in np.unique(planned):
        alike = planned == rate
        together = np.abs(counted[alike].mean() / trials - rate)
        assert together <= 4 * np.sqrt(rate * (1 - rate) / (trials * alike.sum())), rate


@pytest.mark.parametrize("private", ["training", "fixed-encoder"])
def test_samples_are_drawn_with_the_probabilities_that_were_accounted(private: str, data: Dataset) -> None:
    own = np.select([data.targets == 3, data.targets == 5, data.targets == 7], [1.0, 0.0, 4.0], np.inf)
    setup = setup_of(replace(data, sample_epsilons=own), private, "representation-sharing")
    session = session_of(setup)
    share = session.samples.draw_share
    assert share is not None and share.shape == own.shape
    assert (share[own == 0] == 0).all() and (share[np.isinf(own)] == 1).all()
    for level in (1.0, 4.0):
        (planned,) = np.unique(share[own == level])
        assert 0.99 * level < accounted(setup, level, planned) <= level * (1 + 1e-6)
        assert accounted(setup, level, 1.02 * planned) > level
    rounds = 4000
    entering = [session._entering(round_, "prototypes")[ENTERING].numpy() for round_ in range(rounds)]
    check_rates(np.sum(entering, axis=0), share, rounds)
    if private == "training":
        assert session.learner.spec.privacy is not None
        (steps,), counted, taken = session.learner.spec.privacy.steps.values(), np.zeros(150), 0
        for round_ in range(1, rounds // 5):
            for batch in session._private_batches(round_, steps):
                assert batch.private is not None
                counted[batch.positions[batch.private.drawn].numpy()] += 1
                taken += 1
        check_rates(counted, steps.rate * share, taken)


def test_what_single_samples_have_spent_is_reported(data: Dataset) -> None:
    found = run(data, **LEVELS).summary()["privacy"]
    assert found["epsilon"] > 7.9, "samples without a budget of their own have the run's"
    assert [level["epsilon"] for level in found["sample_epsilons"]] == [0.0, 1.0]
    assert [level["samples"] for level in found["sample_epsilons"]] == [
        sum(int((data.targets[part] == c).sum()) for part in parts_of(data)[:2]) for c in (5, 3)
    ]
    assert found["sample_epsilons"][0]["spent"] == 0.0 and 0.99 < found["sample_epsilons"][1]["spent"] <= 1.0


def parts_of(data: Dataset) -> list[np.ndarray]:
    return list(make_local_datasets(data, 3, partition="iid", shift="none", seed=1000, overrides={}).parts)


def test_a_sample_with_epsilon_0_has_no_influence(data: Dataset) -> None:
    """Other values of it give the same uploads and models, with shared weights too."""
    mine = parts_of(data)[0][:5]
    own = np.full(len(data.targets), np.inf)
    own[mine] = 0.0
    changed = data.inputs.copy()
    changed[mine] = 1.0
    for method in ("fedavg", "representation-sharing"):
        marked = replace(data, sample_epsilons=own)
        same(run(marked, "training", method), run(replace(marked, inputs=changed), "training", method))
    assert not np.array_equal(
        run(data, "training", "fedavg").history["loss.cross_entropy"],
        run(replace(data, inputs=changed), "training", "fedavg").history["loss.cross_entropy"],
    )


# --- where budgets come from


def test_the_smaller_of_two_budgets_counts(data: Dataset) -> None:
    """The data set's own, and that of the learner's group for the class."""
    own = np.where(np.arange(150) < 75, 2.0, np.inf)
    role = build_method("fedavg", {}).roles["learner"]
    found = sample_epsilons(
        replace(data, sample_epsilons=own), replace(role, sample_epsilons=((3, 1.0), ("4", 9.0))), np.arange(150)
    )
    three, four, first = data.targets == 3, data.targets == 4, np.arange(150) < 75
    assert (found[three] == 1.0).all() and (found[four & first] == 2.0).all() and (found[four & ~first] == 9.0).all()
    assert np.isinf(found[~three & ~four & ~first]).all()


def test_budgets_in_a_file_follow_their_samples(tmp_path: Path) -> None:
    """Held-out test samples and a smaller `train` leave each budget with its sample; they enter the fingerprint."""
    rng = np.random.default_rng(1000)
    x, y = rng.normal(size=(200, 4)).astype(np.float32), np.arange(200) % 4
    own = np.where(x[:, 0] > 0, 0.5, np.inf)
    np.savez(tmp_path / "marked.npz", x=x, y=y, sample_epsilons=own)
    marked = load(tmp_path / "marked.npz", train=100)
    raw = marked.scaling.undo(marked.inputs)
    assert marked.sample_epsilons is not None and len(marked.sample_epsilons) == 100
    assert np.array_equal(np.isinf(marked.sample_epsilons), raw[:, 0] <= 0)
    assert dataset_sha256(marked) != dataset_sha256(replace(marked, sample_epsilons=None))
    learners = [marked, replace(marked, sample_epsilons=None)]
    result = simulate(method="fedavg", data=learners, private="training", epsilon=8.0, rounds=1, workers=0)
    (level,) = result.summary()["privacy"]["sample_epsilons"]
    assert level["samples"] == np.isfinite(marked.sample_epsilons).sum() and level["epsilon"] == 0.5


# --- refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1.0, -0.5], r"sample 1 has -0\.5.*0 \(never drawn\) or more"),
        ([1.0, float("nan")], r"sample 1 has nan.*inf where"),
        ([1.0], r"must be 2 numbers.*shape \(1,\)"),
        ([True, False], "must be 2 numbers.*got bool"),
        (["low", "high"], "must be 2 numbers"),
    ],
)
def test_wrong_arrays_of_epsilons(wrong: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=f"(?s)sample_epsilons.*{message}"):
        Dataset.from_arrays("mine", np.eye(2), [0, 1], np.eye(2), [0, 1], sample_epsilons=wrong)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), True, "low"])
def test_wrong_epsilons_of_a_group(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"groups.g.sample_epsilons.*an epsilon is a finite number, 0 or more"):
        make_config({"groups": {"g": {"learners": 0, "sample_epsilons": {3: wrong}}}})


def test_epsilons_of_a_group_that_are_no_table() -> None:
    with pytest.raises(ConfigurationError, match=r"groups.g.sample_epsilons"):
        make_config({"groups": {"g": {"learners": 0, "sample_epsilons": 1.0}}})


def test_an_unknown_class(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="sample_epsilons names class 10"):
        run(data, groups={"g": {"learners": 0, "sample_epsilons": {10: 1.0}}})


@pytest.mark.parametrize("method", ["fedavg", "split-learning"])
def test_budgets_without_noise_are_refused(method: str, data: Dataset) -> None:
    settings = {**SMALL, "epsilon": None, **({"model": "lenet5"} if method == "split-learning" else {})}
    with pytest.raises(ConfigurationError, match=r"learner 0 .*epsilon of 0 .*no noise.*private='training'"):
        simulate(method=method, data=data, **LEVELS, **settings)


def test_budgets_with_noise_for_all_samples_at_once_are_refused(data: Dataset) -> None:
    low = replace(data, sample_epsilons=np.full(150, 2.0))
    with pytest.raises(
        ConfigurationError,
        match=r"epsilon of 2 .*private is 'upload'.*all samples.*'training'.*=2 for everybody",
    ):
        run(low, "upload")
    assert run(low, "upload", epsilon=2.0).summary()["privacy"]["target"] == 2.0


def test_a_method_that_uploads_nothing_needs_no_budget(data: Dataset) -> None:
    low = replace(data, sample_epsilons=np.full(150, 2.0))
    settings = SMALL | {"epsilon": None}
    alone = [simulate(method="independent", data=d, **settings) for d in (data, low)]
    assert np.array_equal(alone[0].accuracy, alone[1].accuracy)


def test_very_many_levels_are_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"50 different epsilons below 8.*at most 16.*round them down"):
        run(replace(data, sample_epsilons=np.linspace(0.1, 5.0, 150)))
