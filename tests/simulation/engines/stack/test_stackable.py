"""Which models can be stacked, and the error messages for those that cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience import simulate
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.exchanges import Prototypes, Received, State, View
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.method import Method, Role
from consilience.models import MODELS, SplitModel, build_model
from consilience.optimizers import SGD
from consilience.simulation.engines.stack.stackable import CannotStackError, explain_unstackable, refuse_unstackable

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"learners": 2, "rounds": 1, "workers": 0}
USE_LOOP = '; run it with --engine loop (engine="loop"), which trains one learner after the other'
OR_BRANCHES = ", or on a GPU with --engine branches"


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=24, test=10)


class CustomForward(nn.Module):
    """A linear layer, additional modules, and a given forward function."""

    def __init__(self, read: Callable[[Any, Tensor], Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.linear, self.read, self.own = nn.Linear(64, 16), read, nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, x.flatten(1))


def model(read: Callable[[Any, Tensor], Tensor], *make: Callable[[], nn.Module]) -> Callable[[], SplitModel]:
    def built() -> SplitModel:
        return SplitModel(CustomForward(read, *(m() for m in make)), nn.Linear(16, 10))

    return built


def layers(*make: Callable[[], nn.Module]) -> Callable[[], SplitModel]:
    return lambda: SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *(m() for m in make)), nn.Linear(16, 10))


def learner(made: Callable[[], nn.Module], shape: tuple[int, ...] = (1, 8, 8)) -> Learner:
    return Learner(LearnerSpec(made, Role(), SGD(0.1), shape, "trial"))


def refusal_message(made: Callable[[], nn.Module]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        refuse_unstackable(learner(made))
    said = str(caught.value)
    assert isinstance(caught.value, CannotStackError)
    assert said == f"{caught.value.reason}{USE_LOOP}{OR_BRANCHES if caught.value.recordable else ''}"
    assert said.startswith("model 'trial'")
    return said


# --- stackable models


@pytest.mark.parametrize("name", [name for name in MODELS if "lstm" not in name])
def test_built_in_models_can_be_stacked(name: str) -> None:
    refuse_unstackable(learner(lambda: build_model(name, (1, 16, 16), 10), (1, 16, 16)))


STACKABLE = {
    "layer norm": layers(lambda: nn.LayerNorm(16)),
    "group norm": layers(lambda: nn.GroupNorm(4, 16)),
    "batch norm": layers(lambda: nn.BatchNorm1d(16)),
    "in place": layers(lambda: nn.ReLU(inplace=True)),
    "prelu": layers(nn.PReLU),
    "sorting": model(lambda own, x: own.linear(x.sort(1).values)),
    "a branch on its mode": model(lambda own, x: own.linear(x) if own.training else own.linear(x).tanh()),
    "embedding": model(lambda own, x: own.own[0](x.long().clamp(0, 9)).mean(1), lambda: nn.Embedding(10, 16)),
}


@pytest.mark.parametrize("name", list(STACKABLE))
def test_ordinary_models_can_be_stacked(name: str, data: Dataset) -> None:
    refuse_unstackable(learner(STACKABLE[name]))
    assert simulate(data=data, model=STACKABLE[name], method="fedavg", engine="stack", **SMALL).engine == "stack"


def test_stacking_trial_leaves_state_and_random_numbers_unchanged() -> None:
    trial = learner(layers(lambda: nn.BatchNorm1d(16)))
    state = template_state(trial)
    before = state.clone().flatten()
    torch.manual_seed(1)
    refuse_unstackable(trial)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3)), "the caller's numbers"
    trial.bind(state)
    assert all(torch.equal(value, before[path]) for path, value in trial.state.flatten().items())


# --- unstackable models


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_dropout_is_refused_with_the_name_of_its_layer(dropout: Callable[[float], nn.Module]) -> None:
    assert refusal_message(layers(nn.Tanh, lambda: dropout(0.5))) == (
        "model 'trial' draws random numbers as it trains (dropout in 'features.3'), which stacked learners cannot "
        "do separately" + USE_LOOP + OR_BRANCHES
    )


REFUSED = {
    "dropout in a function": (model(lambda own, x: F.dropout(own.linear(x), 0.5, own.training)), "draws random"),
    "noise": (model(lambda own, x: own.linear(x) + torch.randn(16)), "draws random"),
    ".item()": (model(lambda own, x: own.linear(x) * x.mean().item()), r"reads values .*`\.item\(\)`"),
    "a mean over all batches so far": (layers(lambda: nn.BatchNorm1d(16, momentum=None)), "reads values"),
    "if": (model(lambda own, x: own.linear(x) if x.mean() > 0 else -own.linear(x)), "(reads|hangs on) values"),
    "a mask": (model(lambda own, x: own.linear(x)[x.sum(1) > -1e9]), "shape.* depends on values"),
    "unique values": (model(lambda own, x: own.linear(x) + torch.unique(x).sum()), "depends on values|aten::_unique2"),
    ".tolist()": (model(lambda own, x: own.linear(x) * x.sum().tolist()), "reads values"),
    ".numpy()": (model(lambda own, x: own.linear(x) * float(x.detach().numpy().mean())), "reads values"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_unstackable_operations_are_explained(name: str) -> None:
    made, words = REFUSED[name]
    said = refusal_message(made)
    assert said.startswith("model 'trial', or an exchange with it, has an operation")
    assert re.search(words, said), said
    assert "torch says: " in said and "\n" not in said


def recurrent(make: Callable[[], nn.Module]) -> Callable[[], SplitModel]:
    """Reads an image row by row."""
    return model(lambda own, x: own.own[0](x.view(-1, 8, 8))[0][:, -1], make)


RECURRENT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lstm": (lambda: nn.LSTM(8, 16, batch_first=True), "(LSTM in 'features.own.0')"),
    "gru": (lambda: nn.GRU(8, 16, batch_first=True), "(GRU in 'features.own.0')"),
    "rnn": (lambda: nn.RNN(8, 16, batch_first=True), "(RNN in 'features.own.0')"),
}


def test_what_reads_values_is_not_for_branches_either() -> None:
    """A CUDA graph cannot wait for a value; what only lacks a rule for several learners, it can record."""
    found = {}
    for name, (made, _) in REFUSED.items():
        with pytest.raises(CannotStackError) as caught:
            refuse_unstackable(learner(made))
        found[name] = caught.value.recordable
    assert found["dropout in a function"] and found["noise"]
    assert not any(found[name] for name in (".item()", "if", ".tolist()", "a mask"))


@pytest.mark.parametrize("name", list(RECURRENT))
def test_recurrent_layers_are_refused_with_their_name(name: str) -> None:
    make, layer = RECURRENT[name]
    assert layer in refusal_message(recurrent(make))


def test_operations_without_a_vmap_rule_are_refused_with_their_name() -> None:
    def read(own: Any, x: Tensor) -> Tensor:
        weights = [*(layer.weight for layer in own.own), *(layer.bias for layer in own.own)]
        begin = x.new_zeros(1, len(x), 16)
        return torch.lstm(x.view(-1, 8, 8), (begin, begin), weights, True, 1, 0.0, False, False, True)[0][:, -1]

    assert "aten::lstm" in refusal_message(model(read, lambda: nn.Linear(8, 64), lambda: nn.Linear(16, 64)))


def test_operations_that_vmap_runs_in_a_loop_are_refused() -> None:
    """It works, but is as slow as a loop."""
    said = refusal_message(model(lambda own, x: own.linear(x) + torch.histc(x.detach()).mean()))
    assert "cannot run aten::histc together, and would run it one after the other at every step" in said


def test_unrelated_errors_are_not_changed() -> None:
    trial = learner(layers())
    for error in (RuntimeError("sizes do not match"), torch.OutOfMemoryError("vmap ran out"), ValueError("vmap")):
        with pytest.raises(type(error)) as caught, explain_unstackable(trial):
            raise error
        assert caught.value is error


# --- in a run


@dataclass(frozen=True)
class Branching(Prototypes):
    """Branches on a value of a tensor."""

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        return super().penalty(state, view, received) * (2.0 if view.features.mean() > 0 else 1.0)


BRANCHING = Method("branching", {"learner": Role(exchanges=(Branching(),))})


def forgetful() -> SplitModel:
    return layers(lambda: nn.Dropout(0.5))()


def test_engine_stack_is_refused_before_training(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"model 'forgetful' draws .*'features\.2'.*--engine loop"):
        simulate(data=data, model=forgetful, engine="stack", **SMALL)


def test_exchange_that_branches_on_values_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"model 'mlp', or an exchange with it, has .*--engine loop"):
        simulate(data=data, method=BRANCHING, engine="stack", **SMALL)


RUNS: dict[str, tuple[Any, Any]] = {
    "dropout": (forgetful, "fedavg"),
    ".item()": (REFUSED[".item()"][0], "fedavg"),
    "lstm": (recurrent(RECURRENT["lstm"][0]), "fedavg"),
    "a branching exchange": ("mlp", BRANCHING),
}


@pytest.mark.parametrize("learners", [2, 64])
@pytest.mark.parametrize("name", list(RUNS))
def test_engine_auto_runs_unstackable_models_in_the_loop(name: str, learners: int) -> None:
    """64 small learners are stacked if their model allows it."""
    few, (made, method) = load("digits", train=64, test=10), RUNS[name]
    result = simulate(data=few, model=made, method=method, engine="auto", **SMALL | {"learners": learners})
    assert result.engine == "loop" and result.finished


def test_engine_auto_stacks_many_small_learners() -> None:
    few = load("digits", train=64, test=10)
    assert simulate(data=few, model="mlp", method="fedavg", **SMALL | {"learners": 64}).engine == "stack"
    assert simulate(data=few, model="mlp", method="fedavg", **SMALL).engine == "loop"
