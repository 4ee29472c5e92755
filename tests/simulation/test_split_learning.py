"""Split learning: the same numbers as separate modules that send messages, bytes as encoded, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience import simulate
from consilience.config.config import Config, make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError, UnknownName
from consilience.learner.batches import LearnerKey, plan_batches
from consilience.learner.initial_state import common_seed, drawn_state
from consilience.learner.split_messages import SplitMessages
from consilience.methods import build_method
from consilience.models import SplitModel
from consilience.peer.create_charter import TaskShape, create_charter
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.wire import codec

LEARNERS, BATCH = 3, 16
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Thirty samples for each of three learners: a whole batch of 16 and a partial one."""
    return load("digits", train=90, test=40)


def settings(device: str = "handed-on", cut: str = "", **others: Any) -> Config:
    small = {"learners": LEARNERS, "batch_size": BATCH, "precision": "float64", "workers": 0, "rounds": 2}
    return make_config({**small, "method": {"name": "split-learning", "device": device, "cut": cut}, **others})


@contextmanager
def stage(config: Config, data: Dataset, engine: str = "loop", model: Any = None) -> Iterator[Rounds]:
    method = build_method(config.method.name, config.method.settings)
    setup = build_setup(config, method, data, [model or config.model_name])
    plans = list(setup.cohorts.plans)
    with LoopEngine(plans, data, 0) if engine == "loop" else StackEngine(plans, data) as opened:
        yield Rounds(setup, opened)


def digest_model() -> SplitModel:
    """A model whose running statistics are in both parts."""
    features = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh()
    )
    return SplitModel(features, nn.Linear(8, 10))


# The algorithm, with a module at each learner and one at the server


def separate_parts(model: SplitModel, at: int) -> tuple[nn.Sequential, nn.Sequential]:
    """The layers up to the cut, and those behind it."""
    layers = list(model.features.children())
    return nn.Sequential(*layers[:at]), nn.Sequential(*layers[at:], model.classifier)


def plain_split_learning(rounds: Rounds, count: int, at: int, device: str, adam: bool) -> list[dict[str, Tensor]]:
    """Every learner's model after some rounds, trained by messages between separate modules with torch's optimizers."""
    learner, plan = rounds.learners[0], rounds.engine.plans[0]
    seed = rounds.setup.federations.seeds[0]
    start, train = drawn_state(learner, common_seed(seed)), rounds.setup.data.train

    def new_model() -> SplitModel:
        model = digest_model().double()
        tensors = learner.binding.model_tensors(start)
        model.load_state_dict({name: tensors[name].clone() for name in model.state_dict()})
        return model.train()

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(module.parameters(), 1e-3) if adam else torch.optim.SGD(module.parameters(), 0.1)

    models = [new_model() for _ in range(LEARNERS)]
    devices = [separate_parts(model, at)[0] for model in models]
    _, server = separate_parts(new_model(), at)
    own, common = [optimizer(module) for module in devices], optimizer(server)
    last = None
    for round_ in range(1, count + 1):
        for who in range(LEARNERS):
            if device == "handed-on" and last is not None:
                devices[who].load_state_dict(devices[last].state_dict())
            samples = plan.members.samples(who)
            for positions in plan_batches(plan.work, LearnerKey(seed, who), round_, len(samples), even=True):
                inputs = torch.from_numpy(train.inputs[samples[positions]]).double()
                labels = torch.from_numpy(train.targets[samples[positions]])
                output = devices[who](inputs)
                sent = output.detach().requires_grad_()  # what the server gets
                common.zero_grad()
                F.cross_entropy(server(sent), labels).backward()  # type: ignore[no-untyped-call]
                common.step()
                own[who].zero_grad()
                assert sent.grad is not None
                output.backward(sent.grad)  # what the server answers
                own[who].step()
            last = who
    found = []
    for who in range(LEARNERS):
        lower = devices[LEARNERS - 1 if device == "handed-on" else who]
        *upper, classifier = server
        assert isinstance(classifier, nn.Linear)
        whole = SplitModel(nn.Sequential(*lower, *upper), classifier)
        found.append({k: v for k, v in whole.state_dict().items() if not k.endswith("num_batches_tracked")})
    return found


@pytest.mark.parametrize("engine", ["loop", "stack"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("device", ["handed-on", "private"])
def test_numbers_are_those_of_separate_modules(device: str, optimizer: str, engine: str, data: Dataset) -> None:
    config = settings(device, cut="2", optimizer=optimizer, lr=1e-3 if optimizer == "adam" else 0.1)
    with stage(config, data, engine, digest_model) as rounds:
        rounds.start()
        for _ in range(3):
            rounds.run(evaluate=False)
        expected = plain_split_learning(rounds, 3, at=3, device=device, adam=optimizer == "adam")
        tensors = rounds.learners[0].binding.model_tensors(rounds.engine.read(0))
        for who, model in enumerate(expected):
            for name, value in model.items():
                torch.testing.assert_close(tensors[name][who], value, rtol=1e-8, atol=1e-10, msg=name)
    same = torch.equal(tensors["features.1.weight"][0], tensors["features.1.weight"][1])
    assert same == (device == "handed-on")


def test_it_learns_more_than_learners_alone(data: Dataset) -> None:
    common: dict[str, Any] = {"learners": 3, "rounds": 10, "workers": 0, "data": data}
    split, alone = (simulate(method=method, **common) for method in ("split-learning", "independent"))
    assert split.summary()["accuracy"]["mean"] > alone.summary()["accuracy"]["mean"] + 5


# Bytes


def encoded_bytes(messages: SplitMessages, way: Literal["up", "down"], samples: int) -> int:
    message = messages.batch(way, samples)
    values = {name: np.ones(field.shape, dtype=np.float32) for name, field in message.items()}
    return len(codec.encode(message, values))


@pytest.mark.parametrize("device", ["handed-on", "private"])
def test_counted_bytes_are_encoded_bytes(device: str, data: Dataset) -> None:
    """Thirty samples in batches of 16 and 14, z of 64 numbers; the device part is 64 x 64 weights and 64 biases."""
    with stage(settings(device), data) as rounds:
        rounds.start()
        records = [rounds.run(evaluate=False) for _ in range(2)]
        turns = rounds.learners[0].role.turns
        assert turns is not None
        messages = SplitMessages(rounds.learners[0].task, turns)
    up, down = (encoded_bytes(messages, way, 16) + encoded_bytes(messages, way, 14) for way in ("up", "down"))
    assert up - down >= 30 * 4 and down >= 30 * 64 * 4
    weights = codec.encoded_size(messages.weights()) if device == "handed-on" else 0
    assert weights == 0 or weights >= (64 * 64 + 64) * 4
    assert records[0]["bytes.up"].tolist() == [[up + weights] * 3] == records[1]["bytes.up"].tolist()
    assert records[0]["bytes.down"].tolist() == [[down, down + weights, down + weights]]  # the first trains first
    assert records[1]["bytes.down"].tolist() == [[down + weights] * 3]
    values = 30 * 64 + (64 * 64 + 64 if weights else 0)
    assert records[1]["values.down"].tolist() == [[values] * 3]
    assert records[1]["values.up"].tolist() == [[values + 30] * 3]


def test_a_single_learner_hands_nothing_on(data: Dataset) -> None:
    result = simulate(settings(learners=1, eval_every=2), data=data)
    private = simulate(settings("private", learners=1, eval_every=2), data=data)
    assert result.summary()["bytes"] == private.summary()["bytes"]


# Absent learners


@pytest.mark.parametrize("device", ["handed-on", "private"])
def test_offline_learners_miss_their_turn(device: str, data: Dataset) -> None:
    with stage(settings(device, learners=4, offline=0.5, seed=1), data) as rounds:
        rounds.start()
        missed = 0
        for _ in range(6):
            before = rounds.engine.read(0).clone()
            record = rounds.run(evaluate=True)
            after = rounds.engine.read(0)
            trained = (after.step != before.step).numpy()
            assert (np.isfinite(record["loss.cross_entropy"][0]) == trained).all()
            assert ((record["bytes.up"][0] > 0) == trained).all() and ((record["bytes.down"][0] > 0) == trained).all()
            old, new = (rounds.learners[0].binding.model_tensors(state) for state in (before, after))
            changed = (old["features.hidden.weight"] != new["features.hidden.weight"]).flatten(1).any(1).numpy()
            assert (changed == (trained if device == "private" else trained.any())).all()
            assert (new["classifier.weight"] == new["classifier.weight"][0]).all(), "the server's part is everybody's"
            missed += int((~trained).sum())
        assert 0 < missed < 24


def test_nobody_there_changes_nothing(data: Dataset) -> None:
    with stage(settings(offline=1.0), data) as rounds:
        rounds.start()
        before = rounds.engine.read(0).clone()
        record = rounds.run(evaluate=True)
        assert torch.equal(before.parameters, rounds.engine.read(0).parameters)
        assert record["bytes.up"].sum() == record["bytes.down"].sum() == 0


# What is refused


def test_a_relay_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot run over a relay.*two-stage.*representation-sharing"):
        create_charter("some", {"name": "split-learning"}, TaskShape((64,), 10), ["mlp"])


def test_models_without_a_cut_and_unknown_layers_are_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"is in one part, and split learning needs a layer.*cut=LAYER"):
        simulate(settings(), data=data, model=digest_model)
    with pytest.raises(UnknownName, match=r"unknown layer to cut after 'hiden'.*Did you mean 'hidden'"):
        simulate(settings(cut="hiden"), data=data)
    with pytest.raises(UnknownName, match="unknown device 'given'"):
        build_method("split-learning", {"device": "given"})


def test_learners_with_different_models_are_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="learners 0 and 1 take turns at one server and differ"):
        simulate(settings(model="mlp,lenet5,mlp"), data=data)


def test_samples_never_to_be_shared_and_attacks_are_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="sends the cut layer's output of every sample"):
        simulate(settings(groups={"some": {"learners": "0-2", "never_share": [3]}}), data=data)
    with pytest.raises(ConfigurationError, match=r"learner 1 has an attack.*split learning has no channels"):
        simulate(settings(groups={"bad": {"learners": "1", "attack": "sign-flip"}}), data=data)


def test_the_server_keeps_its_optimizer(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"optimizer_state is 'reset'.*use 'keep'"):
        simulate(settings(optimizer_state="reset"), data=data)
