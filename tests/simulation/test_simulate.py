"""`simulate` from Python: custom models and methods, what is saved of them, and random numbers of a model."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import simulate
from consilience.config.overrides import parse_method
from consilience.data import Dataset, load
from consilience.errors import CheckpointError, ConfigurationError
from consilience.exchanges import Prototypes, Received, State, View
from consilience.method import Method, Role
from consilience.methods import build_method
from consilience.models import SplitModel
from consilience.simulation.engines.loop import worker
from consilience.simulation.engines.loop.worker_pool import worker_pool_of
from consilience.simulation.result import Result

SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "workers": 0}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=60, test=40)


def forgetful(shape: tuple[int, ...] = (1, 8, 8)) -> SplitModel:
    """A model with dropout."""
    inputs = int(np.prod(shape))
    features = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.Dropout(0.5), nn.Tanh())
    return SplitModel(features, nn.Linear(16, 10), bound=1.0)


# Random numbers of a model


def losses(result: Result) -> np.ndarray:
    return result.history["loss.cross_entropy"]


def test_dropout_draws_the_same_numbers_for_the_same_seed(data: Dataset) -> None:
    torch.manual_seed(5)
    first = simulate(data=data, model=forgetful, method="fedavg", **SMALL)
    torch.manual_seed(6)
    again = simulate(data=data, model=forgetful, method="fedavg", **SMALL)
    assert np.array_equal(losses(first), losses(again))
    assert len(np.unique(losses(first))) == losses(first).size, "every learner and round draws its own"


def test_dropout_does_not_change_the_global_random_state(data: Dataset) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    simulate(data=data, model=forgetful, method="independent", **SMALL)
    assert torch.equal(torch.rand(3), expected)


def test_dropout_resumes_from_a_checkpoint_bit_identically(data: Dataset, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    whole = simulate(data=data, model=forgetful, method="fedavg", **SMALL)
    with pytest.raises(KeyboardInterrupt):
        simulate(data=data, model=forgetful, method="fedavg", out=tmp_path / "run", on_round=stop, **SMALL)
    torch.rand(7)
    resumed = simulate(data=data, model=forgetful, resume=tmp_path / "run")
    assert np.array_equal(losses(resumed), losses(whole))


# Custom models


@pytest.mark.parametrize("model", [forgetful(), nn.Linear(64, 10), 7])
def test_module_instead_of_a_builder_is_refused(model: Any, data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=f"model is a {type(model).__name__}; give a name, or a function"):
        simulate(data=data, model=model, **SMALL)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (
            nn.Conv2d(1, 16, 3),
            r"its features have the shape \(16, 6, 6\) for an input, and its classifier expects \(16,\)",
        ),
        (nn.Linear(9, 16), r"cannot take inputs of the shape \(1, 8, 8\)"),
    ],
)
def test_mismatched_feature_shapes_are_refused_before_training(features: nn.Module, words: str, data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=words):
        simulate(data=data, model=lambda: SplitModel(features, nn.Linear(16, 10)), **SMALL)


class Masked(nn.Module):
    """Reads every second input, selected by a mask."""

    mask: Tensor
    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 16)
        self.register_buffer("mask", torch.arange(64) % 2 == 0)
        self.register_buffer("order", torch.arange(32, dtype=torch.int32).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.flatten(1)[:, self.mask]  # (n, 32) with a boolean mask; an integer mask gives (n, 64)
        assert self.order.dtype == torch.int32
        return torch.tanh(self.linear(chosen[:, self.order]))


@pytest.mark.parametrize("workers", [0, 2])
def test_buffers_keep_their_dtypes(workers: int, data: Dataset, tmp_path: Path) -> None:
    settings = SMALL | {"workers": workers, "out": tmp_path / "run"}
    model = partial(_masked)
    result = simulate(data=data, model=model, method="fedavg", **settings)
    assert result.finished
    assert simulate(data=data, model=model, resume=tmp_path / "run").finished


def _masked() -> SplitModel:
    return SplitModel(Masked(), nn.Linear(16, 10), bound=1.0)


def test_builder_that_returns_the_same_module_twice_is_refused(data: Dataset) -> None:
    only = forgetful()
    with pytest.raises(ConfigurationError, match="returned the same module twice; it must make a new one"):
        simulate(data=data, model=lambda: only, **SMALL)


# What is saved of a method


def test_method_settings_are_saved_with_the_run(data: Dataset, tmp_path: Path) -> None:
    chosen = build_method("fedavg", {"start": "different"})
    by_hand = simulate(data=data, method=chosen, out=tmp_path / "hand", **SMALL)
    by_name = simulate(data=data, method="fedavg:start=different", out=tmp_path / "name", **SMALL)
    assert np.array_equal(losses(by_hand), losses(by_name))
    for run in ("hand", "name"):
        kept = tomllib.loads((tmp_path / run / "config.toml").read_text(encoding="utf-8"))
        assert kept["method"] == {"name": "fedavg", "start": "different"}


def test_method_text_is_parsed() -> None:
    assert parse_method("fedavg") == {"name": "fedavg"}
    assert parse_method("fedavg:start=different:every=4") == {"name": "fedavg", "start": "different", "every": 4}
    with pytest.raises(ConfigurationError, match="'start' is not a setting; write KEY=VALUE"):
        parse_method("fedavg:start")
    wrong: Any = 3
    with pytest.raises(ConfigurationError, match="method is 3; it must be a method's name"):
        simulate(method=wrong, **SMALL)


def test_data_folder_is_saved_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = simulate(data_dir="here", train=60, test=20, out="run", **SMALL)
    assert result.config.data.folder == str(tmp_path / "here")


@pytest.mark.parametrize("given", [{"data": "digits"}, {"method": "fedavg"}])
def test_resume_refuses_data_and_method_names(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give it no others"):
        simulate(resume=tmp_path, **given)


def test_penalty_of_weight_zero_reports_no_mutual_information(data: Dataset) -> None:
    silent = simulate(data=data, method="representation-sharing:contrast=0.0", **SMALL)
    assert np.isnan(silent.history["mutual_information"]).all()


def test_resume_refuses_other_data_or_method_of_the_same_shape(data: Dataset, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(data=data, method="fedproto", out=tmp_path / "run", on_round=stop, **SMALL)
    with pytest.raises(CheckpointError, match="is of another run: its data is not the one given"):
        simulate(data=replace(data, inputs=-data.inputs), resume=tmp_path / "run")
    with pytest.raises(CheckpointError, match="is of another run: its method is not the one given"):
        simulate(data=data, method=build_method("fedproto", {"kd": 3.0}), resume=tmp_path / "run")
    assert simulate(data=data, method=build_method("fedproto"), resume=tmp_path / "run").finished


# Errors in a worker


class Particular(Exception):
    """Needs two arguments, so that it cannot be unpickled from its message."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@dataclass(frozen=True)
class Failing(Prototypes):
    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        raise Particular(1, 2)


def test_worker_error_has_a_traceback_note() -> None:
    try:
        Failing().penalty({}, None, None)  # type: ignore[arg-type]
    except Particular as error:
        told = worker._portable(error)
    assert isinstance(told, RuntimeError) and str(told) == "Particular: 1 and 2"
    assert "in penalty" in told.__notes__[0] and "raise Particular(1, 2)" in told.__notes__[0]
    plain = worker._portable(ValueError("as it is"))
    assert isinstance(plain, ValueError) and plain.__notes__


def test_custom_exception_reaches_the_caller(data: Dataset) -> None:
    failing = Method("failing", {"learner": Role(exchanges=(Failing(),))})
    with pytest.raises(Particular):
        simulate(data=data, model=partial(forgetful, (1, 8, 8)), method=failing, **SMALL)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_workers_release_memory_of_the_last_simulation() -> None:
    def shared_memory_of_workers() -> list[int]:
        """KiB of shared memory of each process of the worker pool."""
        simulate(method="two-stage", learners=2, rounds=1, workers=2, width=20_000)
        status = [Path(f"/proc/{worker.process.pid}/status").read_text() for worker in worker_pool_of(2).workers]
        return [int(next(line.split()[1] for line in text.splitlines() if "RssShmem" in line)) for text in status]

    first = shared_memory_of_workers()
    for _ in range(3):
        last = shared_memory_of_workers()
    assert max(first) > 5_000, "there is something to let go of"
    assert max(last) < 2 * max(first)
