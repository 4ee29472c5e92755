"""Uploaded and downloaded bytes: what they depend on, and the cost of absence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from torch import nn

from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.exchanges import Observations, Prototypes, Weights
from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import SplitModel, build_model
from consilience.optimizers import SGD
from consilience.simulation.round import round as rounds_module
from consilience.simulation.round.participation import Presence
from consilience.simulation.setup.federations import Federations
from consilience.simulation.simulate import simulate
from consilience.wire import codec, schema
from consilience.wire.byte_count import ByteCount
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8
from consilience.wire.schema import Field

MNIST = (1, 28, 28)
DIGITS = (1, 8, 8)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=60, test=40)


def traffic_of(make: Callable[[], nn.Module], role: Role, shape: tuple[int, ...] = DIGITS) -> ByteCount:
    return ByteCount(Learner(LearnerSpec(make, role, SGD(), shape)).channels)


@cache
def full_message(method: str, model: str) -> tuple[int, int]:
    """Bytes uploaded and downloaded by a method in a round, for a model on 28x28 images."""
    role = build_method(method).roles["learner"]
    traffic = traffic_of(partial(build_model, model, MNIST, 10), role, MNIST)
    return traffic.up(traffic.channels), traffic.down(traffic.channels)


def perceptron(width: int, hidden: int, classes: int = 10) -> SplitModel:
    layers = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(DIGITS), hidden), nn.ReLU(), nn.Linear(hidden, width), nn.Tanh()
    )
    return SplitModel(layers, nn.Linear(width, classes), bound=1.0)


def layers_of_two(hidden: int) -> SplitModel:
    deep = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 16), nn.Tanh())
    return SplitModel(deep, nn.Linear(16, 10), bound=1.0)


# Bytes of representations


def test_representation_bytes_depend_on_classes_and_width_only() -> None:
    role = build_method("representation-sharing").roles["learner"]

    def bytes_of(model: SplitModel) -> tuple[int, int]:
        traffic = traffic_of(lambda: model, role)
        return traffic.up(traffic.channels), traffic.down(traffic.channels)

    small = bytes_of(perceptron(width=16, hidden=4))
    assert bytes_of(perceptron(width=16, hidden=400)) == small
    assert bytes_of(layers_of_two(hidden=50)) == small
    assert bytes_of(perceptron(width=17, hidden=4)) != small
    assert bytes_of(perceptron(width=16, hidden=4, classes=9)) != small
    # Two float32 tables of classes x width, and two int32 counts of each class; the rest is names.
    values = 2 * 10 * 16 * 4 + 2 * 10 * 4
    header = small[0] - values
    assert small[0] == small[1] and 0 < header < 400
    wide = bytes_of(perceptron(width=1000, hidden=4))
    assert wide[0] - (2 * 10 * 1000 * 4 + 2 * 10 * 4) == pytest.approx(header, abs=16)  # longer numbers in the header


def test_more_observations_add_bytes_in_their_direction_only() -> None:
    def bytes_of(up: int, down: int) -> tuple[int, int]:
        role = Role(exchanges=(Observations(up=up, down=down),))
        traffic = traffic_of(partial(perceptron, 16, 4), role)
        return traffic.up(["observations"]), traffic.down(["observations"])

    entry = 10 * 16 * 4 + 10 * 4
    once, more = bytes_of(1, 1), bytes_of(2, 3)
    assert more[0] - once[0] == pytest.approx(entry, abs=16) and more[1] - once[1] == pytest.approx(2 * entry, abs=16)


# Savings of the default method


@pytest.mark.parametrize(
    ("model", "fedavg", "consilience", "least"),
    [("lenet5", 124_600, (7_730, 20_289), (15, 6)), ("resnet9", 9_897_720, (321_426, 1_254_389), (30, 7))],
)
def test_consilience_is_a_fraction_of_fedavg(
    model: str, fedavg: int, consilience: tuple[int, int], least: tuple[int, int]
) -> None:
    whole, blend = full_message("fedavg", model), full_message("consilience", model)
    for way, much, little, ratio in zip(("up", "down"), whole, blend, least, strict=True):
        print(f"{model} {way}: fedavg {much:,} B, consilience {little:,} B, 1/{much / little:.2f}")
        assert much >= ratio * little
    assert whole == (fedavg, fedavg) and blend == consilience


@pytest.mark.parametrize("method", ["self-distillation", "independent", "centralized"])
def test_independent_training_sends_nothing(method: str, data: Dataset) -> None:
    summary = simulate(data=data, method=method, learners=3, rounds=2, workers=0).summary()
    assert summary["bytes"] == summary["message_bytes"] == {"up": 0, "down": 0}
    assert summary["bytes_total"] == 0


def test_method_without_channels_has_no_body() -> None:
    traffic = ByteCount({})
    assert traffic.up([]) == traffic.down([]) == 0 and traffic.message("up") == {}


def test_byte_summary_is_a_mean_and_the_total_includes_the_start(data: Dataset) -> None:
    result = simulate(data=data, method="representation-sharing", learners=3, rounds=2, seeds=2, workers=0)
    summary, one = result.summary(), result.message_bytes["up"]
    assert summary["bytes"] == {"up": one, "down": one}
    # Two rounds, and the untrained models' representations before them; three learners, both ways, one federation.
    assert summary["bytes_total"] == 3 * 3 * 2 * one
    assert result.history["bytes.up"].shape == (2, 2, 3) and (result.history["bytes.up"] == one).all()


# Missed replies


def both(weights: Weights) -> ByteCount:
    return traffic_of(partial(perceptron, 16, 40), Role(exchanges=(Prototypes(encoding=FLOAT16), weights)))


def size_with_full_weights(traffic: ByteCount) -> int:
    """The size of a body with the common weights in full as float32, and the other channels unchanged."""
    message = traffic.message("down")
    return codec.encoded_size({k: Field(f.shape) if k.startswith("weights.") else f for k, f in message.items()})


@pytest.mark.parametrize("encoding", [BIT, INT4, INT8, FLOAT16, FLOAT32], ids=lambda e: e.name)
def test_missed_replies_cost_the_smaller_of_replies_and_full_weights(encoding: Any) -> None:
    traffic = both(Weights(up=encoding, down=encoding))
    names = ["prototypes", "weights"]
    body, one, whole = traffic.down(names), traffic.down(["weights"]), size_with_full_weights(traffic)
    assert body == codec.encoded_size(traffic.message("down")) and one == codec.encoded_size(
        traffic.message("down", ["weights"])
    )
    costs = [traffic.down(names, {"weights": missed}) for missed in range(1, 60)]
    assert costs == [min(body + (missed - 1) * one, whole) for missed in range(1, 60)]
    assert costs[0] == body and costs[-1] == whole
    assert costs == sorted(costs)
    turning = next(i for i, cost in enumerate(costs) if cost == whole) + 1
    assert turning == {"bit": 25, "int4": 7, "int8": 4, "float16": 2, "float32": 1}[encoding.name]


def test_full_weights_are_sent_in_a_single_body() -> None:
    traffic = both(Weights(up=BIT, down=BIT))
    message = traffic.message("down", full=["weights"])
    assert codec.encoded_size(message) == size_with_full_weights(traffic)
    tensors = {k: np.zeros(f.shape, dtype=np.float32) for k, f in message.items()}
    assert len(codec.encode(message, tensors)) == codec.encoded_size(message)


def test_missed_replies_of_two_channels_are_counted_separately() -> None:
    far = schema.Tensor((400,), BIT, BIT)
    first = schema.Mean("first", {"x": far}, moving=True)
    traffic = ByteCount({"first": first, "second": replace(first, name="second")})
    names = ["first", "second"]
    body, one = traffic.down(names), traffic.down(["first"])
    assert traffic.down(names, {"first": 2, "second": 1}) == body + one
    mixed = codec.encoded_size(traffic.message("down", names, ["second"]))
    assert traffic.down(names, {"first": 2, "second": 50}) == mixed + one
    assert traffic.down(names, {"first": 50, "second": 50}) == codec.encoded_size(traffic.message("down", names, names))


def test_channel_that_sends_nothing_costs_nothing() -> None:
    traffic = both(Weights(up=BIT, down=BIT))
    assert traffic.down(["prototypes"], {"weights": 0}) == traffic.down(["prototypes"])
    assert traffic.down(["prototypes"]) < traffic.down(["prototypes", "weights"])


def test_offline_learner_downloads_the_missed_replies_on_return(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline in rounds 1 to 3: the fourth answer contains four replies of one bit per weight."""

    def there(federations: Federations, host: int | None, round_: int) -> Presence:
        learners = federations.learners
        online = np.ones(learners, dtype=bool)
        online[0] = round_ >= 4
        return Presence(np.ones((1, learners), dtype=bool), online[None])

    monkeypatch.setattr(rounds_module, "draw_presence", there)
    result = simulate(data=data, method="fedavg-1bit", learners=2, rounds=4, workers=0)
    one = result.message_bytes["down"]
    assert result.history["bytes.down"][:, 0].tolist() == [[0, one], [0, one], [0, one], [4 * one, one]]
    assert result.history["bytes.up"][:, 0].tolist() == [[0, one], [0, one], [0, one], [one, one]]


def test_absent_learner_downloads_missed_replies_before_training(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def there(federations: Federations, host: int | None, round_: int) -> Presence:
        learners = federations.learners
        present = np.ones(learners, dtype=bool)
        present[0] = round_ != 1
        return Presence(present[None], np.ones((1, learners), dtype=bool))

    monkeypatch.setattr(rounds_module, "draw_presence", there)
    result = simulate(data=data, method="fedavg-1bit", learners=2, rounds=3, workers=0)
    one = result.message_bytes["down"]
    # In round 2 it downloads round 1's reply before training, and round 2's after.
    assert result.history["bytes.down"][:, 0].tolist() == [[0, one], [2 * one, one], [one, one]]


def test_ambiguous_channel_and_tensor_names_are_refused() -> None:
    numbers = {"count": schema.Tensor((3, 2))}
    with pytest.raises(ConfigurationError, match="'count' is the name of its rows' weights"):
        schema.Mean("spread", numbers, rows=(3,))
    assert set(schema.Mean("spread", numbers).message("up")) == {"spread.count"}
    for name in ("", "a.b"):
        with pytest.raises(ConfigurationError, match="use a name without dots"):
            schema.Pool(name)
