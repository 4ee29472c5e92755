"""Learners that misbehave in a simulation, means that resist them, and settings that contradict each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from consilience import simulate
from consilience.channels import MovingMean
from consilience.config.attacks import Attack, parse_attack
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.methods import build_method
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.round.misbehave import misbehave
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.simulate import check_run
from consilience.wire import schema
from consilience.wire.encodings import BIT, FLOAT16, Bit

pytestmark = pytest.mark.usefixtures("one_thread")
WHO = np.array([4, 7])


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=120, test=40)


# --- what an attack is


def test_attacks_are_joined_by_a_plus() -> None:
    assert parse_attack("none") == Attack() and not parse_attack("none").changes_uploads
    assert parse_attack("sign-flip") == Attack(factor=-1.0)
    assert parse_attack("sign-flip + scale(5) + claim(2)") == Attack(factor=-5.0, claim=2.0)
    assert parse_attack("prototype-swap+label-flip") == Attack(swaps_rows=True, flips_labels=True)
    assert not parse_attack("label-flip").changes_uploads


@pytest.mark.parametrize("text", ["sign-flop", "scale", "scale(0)", "scale(-1)", "sign-flip(3)", "scale(2)+scale(3)"])
def test_attack_that_means_nothing_is_refused_when_made(text: str) -> None:
    with pytest.raises(ConfigurationError, match="attack"):
        make_config({"groups": {"bad": {"learners": 0, "attack": text}}})


# --- what it does to uploads


def one(channel: schema.Channel, attack: str, values: Any, weights: Any) -> tuple[Any, Any]:
    """What learners 4 and 7 upload, of which 7 attacks."""
    tensors, weight = torch.tensor(values), torch.tensor(weights)
    found, claimed = misbehave({7: parse_attack(attack)}, WHO, channel, {"x": tensors}, weight)
    assert torch.equal(found["x"][0], tensors[0]) and torch.equal(claimed[0], weight[0])
    assert tensors.tolist() == torch.tensor(values).tolist(), "the engine's own arrays are left as they are"
    return found["x"][1].tolist(), claimed[1].tolist()


def test_signs_are_flipped_and_values_scaled() -> None:
    channel = schema.Mean("m", {"x": schema.Tensor((2,))})
    values, weights = [[1.0, 2.0], [1.0, -2.0]], [3.0, 5.0]
    assert one(channel, "sign-flip", values, weights) == ([-1.0, 2.0], 5.0)
    assert one(channel, "scale(10)", values, weights) == ([10.0, -20.0], 5.0)
    assert one(channel, "claim(4)", values, weights) == ([1.0, -2.0], 20.0)


def test_upload_of_an_attack_is_one_that_a_relay_accepts() -> None:
    values, weights = [[0.5, -0.5], [0.5, -0.5]], [1.0, 1.0]
    bounded = schema.Mean("m", {"x": schema.Tensor((2,), low=-1, high=1)})
    assert one(bounded, "scale(10)", values, weights)[0] == [1.0, -1.0]
    half = schema.Mean("m", {"x": schema.Tensor((2,), FLOAT16)})
    assert one(half, "scale(1000000)", values, weights)[0] == [65504.0, -65504.0]
    assert all(np.isfinite(one(schema.Mean("m", {"x": schema.Tensor((2,))}), "scale(1e39)", values, weights)[0]))


def test_votes_can_be_flipped_but_neither_scaled_nor_claimed_twice() -> None:
    votes = schema.Mean("m", {"x": schema.Tensor((2,), Bit(unit=0.5))}, moving=True)
    values, weights = [[0.5, -0.5], [0.5, -0.5]], [1.0, 1.0]
    assert one(votes, "scale(10)+claim(9)", values, weights) == ([0.5, -0.5], 1.0)
    assert one(votes, "sign-flip", values, weights) == ([-0.5, 0.5], 1.0)
    scaled = schema.Mean("m", {"x": schema.Tensor((2,), BIT)}, moving=True)
    assert one(scaled, "sign-flip+scale(10)", values, weights) == ([-5.0, 5.0], 1.0)


def test_values_and_counts_of_each_class_are_uploaded_as_those_of_the_next() -> None:
    mean = schema.Mean("m", {"x": schema.Tensor((3, 1))}, rows=(3,))
    values = [[[1.0], [2.0], [3.0]]] * 2
    assert one(mean, "prototype-swap", values, [[1.0, 0.0, 5.0]] * 2) == ([[3.0], [1.0], [2.0]], [5.0, 1.0, 0.0])
    pool = schema.Pool("p", {"x": schema.Tensor((3, 1))}, rows=(3,), keep=1)
    entries = [[entry] for entry in values]
    assert one(pool, "prototype-swap", entries, [[[1.0, 0.0, 5.0]]] * 2)[0] == [[[3.0], [1.0], [2.0]]]


def test_what_stays_with_a_learner_is_not_attacked() -> None:
    own = schema.Mean("m", {"x": schema.Tensor((2,))}, scope="oneself")
    assert one(own, "sign-flip", [[1.0, 2.0], [1.0, 2.0]], [1.0, 1.0])[0] == [1.0, 2.0]


# --- what it does to a run


def run(data: Dataset, method: str = "fedavg", **settings: Any) -> Any:
    given = {"learners": 4, "rounds": 3, "eval_every": 3, "workers": 0, **settings}
    return simulate(method=method, data=data, **given)


def common_weights(data: Dataset, **settings: Any) -> dict[str, Any]:
    config = make_config({"learners": 4, "workers": 0, "method": {"name": "fedavg"}, **settings})
    setup = build_setup(config, build_method("fedavg"), data, ["mlp"])
    with LoopEngine(list(setup.cohorts.plans), setup.data.train, 0) as engine:
        rounds = Rounds(setup, engine)
        rounds.start()
        rounds.run(evaluate=False)
        channel = rounds.federations[0].channels["weights"]
    assert isinstance(channel, MovingMean)
    return {name: value.numpy().copy() for name, value in channel.common.items()}


def test_group_without_an_attack_changes_no_bit(data: Dataset) -> None:
    plain = common_weights(data)
    none = common_weights(data, groups={"bad": {"learners": 0, "attack": "none"}}, aggregation="mean")
    assert all(plain[name].tobytes() == none[name].tobytes() for name in plain)


def test_limits_that_nothing_reaches_change_no_bit(data: Dataset) -> None:
    plain, loose = common_weights(data), common_weights(data, clip_norm=1e9, weight_cap=10_000)
    assert all(plain[name].tobytes() == loose[name].tobytes() for name in plain)


def test_median_ignores_a_learner_that_a_mean_follows(data: Dataset) -> None:
    bad = {"bad": {"learners": 0, "attack": "scale(1e30)"}}
    plain, median = common_weights(data), common_weights(data, groups=bad, aggregation="median")
    mean, clipped = common_weights(data, groups=bad), common_weights(data, groups=bad, clip_ratio=1.0)
    assert max(np.abs(values).max() for values in mean.values()) > 1e20
    for found in (median, clipped):
        assert max(np.abs(found[name] - plain[name]).max() for name in plain) < 0.1


def test_label_flip_is_in_the_training_data_of_its_learners_alone(data: Dataset) -> None:
    bad = {"bad": {"learners": [1], "attack": "label-flip"}}
    config = make_config({"learners": 4, "method": {"name": "fedavg"}, "groups": bad})
    honest = make_config({"learners": 4, "method": {"name": "fedavg"}})
    setups = [build_setup(c, build_method("fedavg"), data, ["mlp"]).data for c in (config, honest)]
    for who in range(4):
        flipped, true = (setup.train.targets[setup.parts[0][who]] for setup in setups)
        assert np.array_equal(flipped, 9 - true if who == 1 else true)
    assert np.array_equal(data.targets, setups[1].train.targets), "the data set itself is left as it is"


def test_label_flippers_learn_the_wrong_labels(data: Dataset) -> None:
    bad = {"bad": {"learners": "0-1", "attack": "label-flip"}}
    found = run(data, "independent", groups=bad, rounds=15, eval_every=15).summary()["groups"]
    honest = next(group for name, group in found.items() if name != "bad")
    assert found["bad"]["accuracy"]["mean"] < 20 < 30 < honest["accuracy"]["mean"]


def test_learners_that_share_nothing_need_no_mean_that_resists(data: Dataset) -> None:
    for method in ("independent", "centralized", "self-distillation"):
        check_run(make_config({"aggregation": "median", "clip_norm": 1.0, "method": {"name": method}}), data)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"aggregation": "trimmed(0.5)"}, "leaves nobody"),
        ({"aggregation": "middle"}, "aggregation"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"clip_ratio": 0.5}, "clip_ratio"),
        ({"weight_cap": 0}, "weight_cap"),
    ],
)
def test_wrong_setting_is_refused_when_made(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make_config(settings)


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        ("fedavg", {"aggregation": "median", "learners": 2}, "nothing can be trimmed of two"),
        ("two-stage", {"clip_norm": 1.0, "learners": 3}, "votes"),
        ("fedavg", {"groups": {"bad": {"learners": 0, "attack": "prototype-swap"}}}, "by class"),
    ],
)
def test_setting_that_contradicts_the_method_is_refused(
    method: str, settings: dict[str, Any], why: str, data: Dataset
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        check_run(make_config({**settings, "method": {"name": method}}), data)


def test_median_of_a_pool_is_refused() -> None:
    images = load("digits", train=60, test=20)
    config = make_config({"aggregation": "median", "method": {"name": "flesd", "distill": "learner", "form": "pool"}})
    with pytest.raises(ConfigurationError, match="is a pool"):
        check_run(config, images)
