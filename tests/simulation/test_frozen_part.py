"""Models with a frozen part: one copy for all learners, whole exports, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import load_model, simulate
from consilience.data import Dataset, load
from consilience.errors import CheckpointError, ConfigurationError
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.result import Result

SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "engine": "loop", "workers": 0}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=90, test=40)


def network() -> nn.Module:
    """A frozen backbone with BatchNorm, an adapter, and a classifier."""
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(frozen, nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 10))


TRAINED = 12 * 4 + 4 + 4 * 10 + 10


def saved(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    return checkpoint[0]


def frozen_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith("0.")}


def test_models_of_all_learners_have_the_builder_s_frozen_values(data: Dataset) -> None:
    """Neither the seed of a federation nor the number of a learner changes them, and training does not."""
    found = simulate(method="independent", data=data, model=network, seeds=2, **SMALL)
    other = simulate(method="fedavg", data=data, model=network, seed=7, **SMALL)
    models = [found.model(learner=who, seed=seed) for who in range(3) for seed in (0, 1)] + [other.model(learner=1)]
    first = frozen_state(models[0])
    assert set(first) == {
        *("0.1.weight", "0.1.bias", "0.2.weight", "0.2.bias"),
        *("0.2.running_mean", "0.2.running_var", "0.2.num_batches_tracked"),
    }
    assert first["0.1.weight"].abs().sum() > 0 and int(first["0.2.num_batches_tracked"]) == 0
    for model in models[1:]:
        assert all(torch.equal(tensor, first[name]) for name, tensor in frozen_state(model).items())
    assert len({model[1].weight[0, 0].item() for model in models}) == len(models)  # type: ignore[index]


@pytest.mark.parametrize("method", ["fedavg", "fedavg-1bit", "fedprox"])
def test_only_the_trained_part_travels(method: str, data: Dataset) -> None:
    trained, frozen = (
        simulate(method=method, data=data, model=build, **SMALL)
        for build in (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), network)
    )
    assert trained.history["values.up"][-1].max() == 650
    assert frozen.history["values.up"][-1].max() == TRAINED


def test_workers_have_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(Path(__file__).read_text().split("SMALL:")[0] + _source(network))
    model = f"{file}:network"
    for workers in (0, 2):
        simulate(
            method="fedavg", data=data, model=model, **SMALL | {"workers": workers}, out=tmp_path / f"run{workers}"
        )
    first, second = saved(tmp_path / "run0"), saved(tmp_path / "run2")
    assert first["learners.0.parameters"].shape == (3, TRAINED)
    assert all(np.array_equal(values, second[name]) for name, values in first.items())


def _source(function: Callable[..., Any]) -> str:
    lines = Path(__file__).read_text().splitlines()
    start = lines.index(f"def {function.__name__}() -> nn.Module:")
    return "\n".join(lines[start : start + 4])


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_stopping_and_resuming_gives_the_same_bits(engine: str, data: Dataset, tmp_path: Path) -> None:
    asked = {"method": "fedavg-1bit", "data": data, "model": network, **SMALL, "engine": engine}
    simulate(**asked | {"rounds": 4}, out=tmp_path / "whole")

    def stop(method: str, round_: int, total: int, history: Any) -> None:
        if round_ == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(**asked | {"rounds": 4}, out=tmp_path / "parts", on_round=stop)
    simulate(data=data, model=network, resume=tmp_path / "parts")
    whole, parts = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert whole.keys() == parts.keys() and all(np.array_equal(whole[k], parts[k]) for k in whole)


def test_another_frozen_part_is_refused_when_resuming_and_exporting(data: Dataset, tmp_path: Path) -> None:
    def network() -> nn.Module:
        model = globals()["network"]()
        model[0][1].bias.data += shift
        return model  # type: ignore[no-any-return]

    shift = 0.0

    def crash(method: str, round_: int, total: int, history: Any) -> None:
        if round_ == 1:
            raise OSError("power cut")

    with pytest.raises(OSError, match="power cut"):
        simulate(method="fedavg", data=data, model=network, **SMALL, out=tmp_path / "run", on_round=crash)
    shift = 0.5
    with pytest.raises(CheckpointError, match="its frozen part is not the one given; resume with the same frozen part"):
        simulate(data=data, model=network, resume=tmp_path / "run")
    shift = 0.0
    assert simulate(data=data, model=network, resume=tmp_path / "run").finished
    shift = 0.5
    with pytest.raises(ConfigurationError, match=r"its frozen part .* has other values than before"):
        Result.load(tmp_path / "run", model=network).model(learner=0)


def test_exports_have_the_whole_model(data: Dataset, tmp_path: Path) -> None:
    result = simulate(method="fedavg", data=data, model=network, **SMALL)
    result.export(tmp_path / "model", learner=0)
    model = load_model(tmp_path / "model", network)
    inputs = torch.from_numpy(data.test_inputs)
    assert torch.equal(model(inputs), result.model(learner=0)(inputs))
    assert set(model.state_dict()) == set(network().state_dict())


# What is refused


def changing() -> nn.Module:
    changing.calls = getattr(changing, "calls", 0) + 1  # type: ignore[attr-defined]
    model = network()
    model[0][1].bias.data += changing.calls  # type: ignore[attr-defined,index]
    return model


class Counting(nn.Module):
    """Counts its calls in a buffer of a frozen module."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.fc = nn.Linear(64, 8).requires_grad_(False), nn.Linear(8, 10)
        self.backbone.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 8, 8) -> (n, 10)."""
        self.backbone.get_buffer("calls").add_(1)
        logits: Tensor = self.fc(self.backbone(x.flatten(1)))
        return logits


@pytest.mark.parametrize(
    ("model", "method", "said"),
    [
        (
            lambda: network().requires_grad_(False),
            "fedavg",
            "all of its parameters are frozen.*nothing to train; unfre",
        ),
        (
            network,
            "fedavg:part=*lora_*",
            r"part '\*lora_\*' covers nothing of network; its trained .*leave part out",
        ),
        (network, "fedavg:part=features.model.0", r"part .* covers 4 parameters of network, such as 'features.model.0"),
        (
            changing,
            "fedavg",
            "model 'changing': its frozen part .* has other values than before, SHA-256 .*load them f",
        ),
        (Counting, "fedavg", "model 'Counting' changes a buffer of its frozen part .*leave such buffers unchanged"),
    ],
)
def test_what_cannot_work_is_refused(model: Callable[[], nn.Module], method: str, said: str, data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=said):
        simulate(method=method, data=data, model=model, **SMALL)


def test_frozen_only_part_names_what_is_trained(data: Dataset) -> None:
    with pytest.raises(ConfigurationError) as refused:
        simulate(method="fedavg:part=features.model.0", data=data, model=network, **SMALL)
    assert "never travel; unfreeze some, or name a part of what is trained: features.model.1.weight" in str(
        refused.value
    )
