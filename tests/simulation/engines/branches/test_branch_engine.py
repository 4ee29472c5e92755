"""The branches engine on what the stack cannot run, and what it refuses itself. On a CPU branches run in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import simulate
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.models import SplitModel
from consilience.simulation.engines import choose
from consilience.simulation.records.run_folder import RunFolder
from tests.contract.test_engines_contract import (
    PARTIAL_PARTICIPATION,
    assert_close,
    interrupt_at,
    run_rounds,
    settings,
    stage,
)

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "batch_size": 8, "workers": 0}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=120, test=40)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches may be asked for on any device, as if each were a GPU."""
    monkeypatch.setattr(choose, "_BRANCHING", ("cpu", "cuda"))


class Rows(nn.Module):
    """Reads an image row by row."""

    def __init__(self, reader: nn.RNNBase) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.reader(x.view(-1, 8, 8))[0]
        return outputs[:, -1]


class Noisy(nn.Module):
    """Adds noise as it trains."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) if self.training else x


def forgetful() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 16), nn.Tanh()), nn.Linear(16, 10))


def drop_channels() -> SplitModel:
    features = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.5), nn.Flatten()
    )
    return SplitModel(nn.Sequential(features, nn.Linear(144, 8), nn.Dropout(0.5)), nn.Linear(8, 10))


def noisy() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), Noisy(), nn.Linear(64, 16)), nn.Linear(16, 10))


def lstm() -> SplitModel:
    return SplitModel(Rows(nn.LSTM(8, 16, num_layers=2, batch_first=True)), nn.Linear(16, 10))


def gru() -> SplitModel:
    return SplitModel(Rows(nn.GRU(8, 16, batch_first=True)), nn.Linear(16, 10))


MODELS = [forgetful, drop_channels, noisy, lstm, gru]
CHANCES: list[dict[str, Any]] = [{}, PARTIAL_PARTICIPATION | {"epochs": 2}]


@pytest.mark.filterwarnings("ignore:RNN module weights")
@pytest.mark.parametrize("chance", CHANCES, ids=["even", "unequal, come and go"])
@pytest.mark.parametrize("case", ["fedavg", "representation-sharing"])
@pytest.mark.parametrize("model", MODELS)
def test_models_that_cannot_be_stacked_have_the_loops_numbers(
    model: Callable[[], SplitModel], case: str, chance: dict[str, Any], device: str, data: Dataset
) -> None:
    """Dropout too: every learner draws what it draws in the loop."""
    config = settings(case, device, **chance)
    played = []
    for engine in ("loop", "branches"):
        with stage(engine, config, data, models=[model]) as rounds:
            played.append(run_rounds(rounds))
    assert_close(played[0], played[1])


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("method", ["fedavg", "consilience"])
def test_stopping_and_resuming_gives_the_same_bits(method: str, data: Dataset, tmp_path: Path) -> None:
    run: dict[str, Any] = SMALL | {
        "rounds": 4,
        "engine": "branches",
        "method": method,
        "model": forgetful,
        "data": data,
    }
    whole = simulate(**run, participation=0.7, out=tmp_path / "whole")
    stopped = simulate(**run, participation=0.7, out=tmp_path / "parts", on_round=interrupt_at(2))
    assert stopped.history.rounds == 2 and not stopped.finished
    parts = simulate(data=data, model=forgetful, resume=tmp_path / "parts")
    assert whole.engine == parts.engine == "branches"
    one, other = (RunFolder.open(tmp_path / name).load() for name in ("whole", "parts"))
    assert one is not None and other is not None and one[1]["engine"] == "branches"
    assert [k for k in one[0] if one[0][k].tobytes() != other[0][k].tobytes()] == []


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("private", ["upload", "training"])
def test_private_learners_have_the_loops_numbers(private: str, data: Dataset) -> None:
    """A private step takes each sample's own gradient, of one learner at a time."""
    asked: dict[str, Any] = {"private": private, "epsilon": 50.0, "precision": "float64"}
    own: dict[str, Any] = SMALL | asked | {"data": data, "model": "mlp", "method": "representation-sharing"}
    loop, branches = (simulate(**own, engine=engine) for engine in ("loop", "branches"))
    assert branches.engine == "branches"
    for metric in (m for m in loop.history if not m.startswith(("seconds", "wall"))):
        np.testing.assert_allclose(branches.history[metric], loop.history[metric], rtol=1e-9, atol=1e-12)


def test_on_a_cpu_branches_are_refused_with_what_works(data: Dataset) -> None:
    for device in ("cpu", "mps"):
        with pytest.raises(ConfigurationError) as caught:
            choose.choose_engine(settings("fedavg", "cpu", engine="branches").replace(device=device), None)  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"engine is 'branches', which records learners' steps on an NVIDIA GPU, and device is '{device}'; use "
            f"device cuda, or engine loop or stack"
        )
    with pytest.raises(ConfigurationError, match=r"engine is 'branches'.*device is 'cpu'"):
        simulate(data=data, model="mlp", engine="branches", **SMALL)


@pytest.mark.usefixtures("on_a_cpu")
def test_functions_of_one_sample_are_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"augment is a function .*crop and flip.*--engine loop"):
        simulate(data=data, model="mlp", engine="branches", augment=lambda image: image * 0.5, **SMALL)


def dropping_lstm() -> SplitModel:
    return SplitModel(Rows(nn.LSTM(8, 16, num_layers=2, batch_first=True, dropout=0.2)), nn.Linear(16, 10))


@pytest.mark.usefixtures("on_a_cpu")
def test_dropout_between_recurrent_layers_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"dropout between recurrent layers \(LSTM in 'features\.reader'\)"):
        simulate(data=data, model=dropping_lstm, engine="branches", **SMALL)
    assert simulate(data=data, model=dropping_lstm, **SMALL).engine == "loop"


@pytest.mark.usefixtures("on_a_cpu")
def test_other_measures_of_a_run_work_as_in_the_stack(data: Dataset) -> None:
    """Probes, own test sets, metrics, watched layers, validation: jobs beside training."""
    more: dict[str, Any] = {
        "shift": "rotate(30)",
        "metrics": "f1",
        "watch": "features",
        "validation": 0.2,
        "precision": "float64",
    }
    run: dict[str, Any] = SMALL | more | {"data": data, "model": "mlp", "method": "fedavg"}
    stack, branches = (simulate(**run, engine=engine) for engine in ("stack", "branches"))
    for metric in (m for m in stack.history if not m.startswith(("seconds", "wall"))):
        np.testing.assert_allclose(branches.history[metric], stack.history[metric], rtol=1e-9, atol=1e-12)
