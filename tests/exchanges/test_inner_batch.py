"""Algorithm 1 of two-stage learning to the letter: against plain torch, by hand, unequal sizes, absent devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.channels import LAST_MOVE, MovingMean
from consilience.config.config import Config, make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.exchanges import Gradients, Received
from consilience.learner.batches import LearnerKey, plan_batches
from consilience.peer.create_charter import TaskShape, create_charter
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.round import round as rounds_module
from consilience.simulation.round.participation import Presence
from consilience.simulation.round.round import Rounds
from consilience.simulation.simulate import simulate
from consilience.wire.encodings import Bit
from tests.voting_tools import common_of, flat, served, settings, stage

each_engine = pytest.mark.parametrize("engine", ["loop", "stack"])
pytestmark = pytest.mark.usefixtures("one_thread")
DELTA = 0.01


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=120, test=40)


def inner_batch(**others: Any) -> Config:
    method = {"name": "two-stage", "inner": "batch", "delta": DELTA, "alpha_1": 0, **others.pop("method", {})}
    return settings(
        **{"precision": "float64", "optimizer": "sgd", "lr": 0.1, "batch_size": 10, **others}, method=method
    )


def take_part(monkeypatch: pytest.MonkeyPatch, learners: int, *who: int) -> None:
    """Only these learners take part in the next rounds."""
    there = np.isin(np.arange(learners), who)[None]
    monkeypatch.setattr(rounds_module, "draw_presence", lambda *given: Presence(there, np.ones_like(there)))


def last_move(rounds: Rounds) -> dict[str, Tensor]:
    channel = rounds.federations[0].channels["gradients"]
    assert isinstance(channel, MovingMean)
    return channel.reply


# --- by hand


def test_part_is_on_its_way_before_each_batch_by_hand() -> None:
    """Two batches of a quarter each: the common values with the last vote are reached before the second."""
    exchange = Gradients(inner="batch", delta=0.25, batches=2)
    common, moved = torch.tensor([1.5, -0.5]), torch.tensor([0.5, -0.5])
    received = Received({"w": common, f"{LAST_MOVE}w": moved}, torch.tensor(1.0), torch.tensor(True))
    for progress, expected in ((0.0, [1.0, 0.0]), (0.5, [1.25, -0.25]), (1.0, [1.5, -0.5])):
        found = exchange.values_before_batch(received, torch.tensor(progress))
        assert found.keys() == {"w"} and found["w"].tolist() == expected
    assert exchange.owned_values(received)["w"].tolist() == [1.0, 0.0], "the last vote is not applied yet"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"inner": "epoch"}, "unknown inner 'epoch'. Known: batch, round"),
        ({"inner": "batch", "batches": -1}, "batches is -1"),
        ({"inner": "batch", "batches": 1.5}, "batches is 1.5"),
        ({"batches": 3}, "batches is 3 and inner is 'round'"),
        ({"inner": "batch", "vote": False}, "vote is false"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Gradients(**wrong)


def test_federation_over_a_relay_must_say_how_many_batches() -> None:
    method: dict[str, Any] = {"name": "two-stage", "inner": "batch"}
    shape = TaskShape((1, 8, 8), 10)
    with pytest.raises(ConfigurationError, match="do not know how many batches the others have; set how many steps"):
        create_charter("digits", method, shape, ["mlp"])
    charter, _ = create_charter("digits", {**method, "batches": 4}, shape, ["mlp"])
    downs = {tensor.down for tensor in charter.channels["gradients"].tensors.values()}
    assert downs == {Bit(unit=4 * 1e-3)}


# --- against plain torch


def algorithm_1(rounds: Rounds, data: Dataset, row: int, vote: dict[str, Tensor], round_: int) -> dict[str, Tensor]:
    """ClientUpdate of the paper in plain torch, for a learner whose state is copied: the sign of its last gradient.

    vote: the last majority vote, in the direction of the gradient.
    """
    learner, plan = rounds.learners[0], rounds.engine.plans[0]
    learner.bind(rounds.engine.read(0).row(row).clone())
    own = plan.members.samples(row)
    named, signs = dict(learner.model.named_parameters()), dict[str, Tensor]()
    head = learner.modules.extra["two_stage"]["head"]
    assert isinstance(head, nn.Linear)
    for batch in plan_batches(plan.work, LearnerKey(0, row), round_, len(own), even=True):
        with torch.no_grad():
            for name in vote:
                named[name].sub_(DELTA * vote[name])  # w = w - delta sign[sum_k sign(g_k)]
        inputs, targets = torch.from_numpy(data.inputs[own[batch]]).double(), torch.from_numpy(data.targets[own[batch]])
        seen = learner.modules.forward(inputs)
        loss = F.cross_entropy(seen["logits"], targets)
        loss = loss + F.cross_entropy(head(seen["outputs"]["cut"].flatten(1)), targets)
        trained = {**named, "head.weight": head.weight, "head.bias": head.bias}
        gradients = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
        signs = {name: gradients[name].sign() for name in vote}
        with torch.no_grad():
            for name in trained.keys() - vote.keys():
                trained[name].sub_(0.1 * gradients[name])
    return signs


@each_engine
def test_three_rounds_equal_algorithm_1(engine: str, data: Dataset) -> None:
    """Three learners with 40 samples: four batches of ten, so the part moves by four deltas in a round."""
    with stage(inner_batch(), data, engine) as rounds:
        vote = {name: torch.zeros_like(value) for name, value in common_of(rounds).items()}
        here = {name: value.clone() for name, value in common_of(rounds).items()}
        for round_ in range(1, 4):
            signs = [algorithm_1(rounds, data, row, vote, round_) for row in range(3)]
            rounds.run(evaluate=False)
            for name in here:
                here[name] = here[name] - 4 * DELTA * vote[name]
                torch.testing.assert_close(served(rounds, 0)[name], here[name], rtol=0, atol=1e-12)
                counted = torch.stack([each[name] for each in signs]).sum(0)
                sure = torch.stack([each[name] != 0 for each in signs]).all(0)  # three voters have no ties
                moved = last_move(rounds)[name]
                assert sure.double().mean() > 0.3
                torch.testing.assert_close(moved[sure], (-4 * DELTA * counted.sign())[sure], rtol=0, atol=1e-12)
                vote[name] = -moved.sign()  # coins decide where a gradient is 0
        assert all(torch.equal(served(rounds, row)[name], served(rounds, 0)[name]) for row in range(3) for name in here)


@each_engine
def test_learners_with_other_numbers_of_batches_arrive_at_the_same_values(engine: str, data: Dataset) -> None:
    with stage(inner_batch(partition="shares(0.6, 0.3, 0.1)", offline=0.0), data, engine) as rounds:
        sizes = rounds.engine.plans[0].members.sizes
        assert sorted(-(-sizes // 10)) == [2, 4, 8]
        (unit,) = {tensor.down for tensor in rounds.learners[0].channels["gradients"].tensors.values()}
        assert unit == Bit(unit=4 * DELTA), "forty samples each on average: four batches"
        for _ in range(3):
            rounds.run(evaluate=False)
        parts = flat(rounds, "server")
        assert torch.equal(parts[0], parts[1]) and torch.equal(parts[0], parts[2])


@each_engine
def test_returning_device_starts_where_the_others_start(
    engine: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learner 2 misses three rounds; back again, it has applied all votes but the last."""
    with stage(inner_batch(), data, engine) as rounds:
        take_part(monkeypatch, 3, 0, 1)
        for _ in range(3):
            rounds.run(evaluate=False)
        expected = {name: value - last_move(rounds)[name] for name, value in common_of(rounds).items()}
        goal = {name: value.clone() for name, value in common_of(rounds).items()}
        stale = served(rounds, 2)
        assert not all(torch.equal(stale[name], expected[name]) for name in expected)
        take_part(monkeypatch, 3, 2)
        record = rounds.run(evaluate=False)
        # Its own vote, the only one, was cast at the common values that all had agreed on.
        for name, value in served(rounds, 2).items():
            torch.testing.assert_close(value, goal[name], rtol=0, atol=1e-12)
        assert record["bytes.down"][0, 2] > 0


def test_bytes_of_the_last_vote_are_counted_with_full_values(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away for 40 rounds, a learner downloads all values in float32, and the last vote beside them."""
    found = {}
    for inner in ("round", "batch"):
        with stage(inner_batch(method={"inner": inner}), data) as rounds:
            take_part(monkeypatch, 3, 0)
            for _ in range(40):
                rounds.run(evaluate=False)
            take_part(monkeypatch, 3, 2)
            record = rounds.run(evaluate=False)
            reply = rounds.byte_counts[0].down(["gradients"])
            found[inner] = record["bytes.down"][0, 2] - reply  # the reply at the end of this round
    assert found["round"] > 4 * 2410 and found["batch"] == found["round"] + reply


# --- stop and resume


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_resumes_to_the_bit(engine: str, tmp_path: Path) -> None:
    small = {"learners": 5, "participation": 0.4, "train": 150, "test": 60, "rounds": 6, "engine": engine, "workers": 0}
    config = make_config({**small, "method": {"name": "two-stage", "inner": "batch", "delta": 0.01}})
    whole = simulate(config, out=tmp_path / "whole")

    def stop(name: str, round_: int, *others: Any) -> None:
        if round_ == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(config, out=tmp_path / "part", on_round=stop)
    finished = simulate(resume=tmp_path / "part")
    for key in ("accuracy", "accuracy_ensemble", "loss.two_stage", "bytes.down"):
        np.testing.assert_array_equal(finished.history[key], whole.history[key])
    (first, _), (second, _) = (RunFolder.open(tmp_path / name).load() or ({}, {}) for name in ("whole", "part"))
    assert first.keys() == second.keys() and any(".moved." in key for key in first)
    for key, value in first.items():
        np.testing.assert_array_equal(second[key], value, err_msg=key)


@each_engine
def test_both_readings_learn(engine: str) -> None:
    """Digits: all classes at each of four devices; far above the tenth that guessing has."""
    small = {"learners": 4, "train": 400, "test": 200, "rounds": 15, "engine": engine, "workers": 0, "seed": 1000}
    for method, least in (({"inner": "round", "delta": 0.01}, 75), ({"inner": "batch", "delta": 0.003}, 50)):
        result = simulate(make_config({**small, "method": {"name": "two-stage", **method}}))
        assert result.summary()["ensemble"]["mean"] > least, method
