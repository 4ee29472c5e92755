"""Branches recorded on a GPU: what is recorded, what it computes, what it takes; beside the engines' contract suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience.data import Dataset, load
from consilience.methods import build_method
from consilience.models import SplitModel
from consilience.simulation.engines import choose
from consilience.simulation.engines.choose import choose_engine, open_engine, torch_configured_for
from consilience.simulation.engines.stack.cuda_graphs import Graphs
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from tests.contract.test_engines_contract import (
    PARTIAL_PARTICIPATION,
    Arrays,
    Played,
    assert_close,
    assert_same_bits,
    noise,
    normalized,
    run_rounds,
    settings,
    stage,
)
from tests.simulation.engines.branches.test_branch_engine import MODELS, forgetful, lstm

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.filterwarnings("ignore:RNN module weights"),
]
ROUNDS = 6
"""Each step is run twice before it is recorded, so that most of these are replays."""


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=120, test=40)


def graphs_of(rounds: Rounds) -> Iterator[Graphs]:
    for trainer in rounds.engine.trainers._trainers.values():  # type: ignore[attr-defined]
        yield trainer.graphs


@pytest.mark.parametrize("model", ["mlp", normalized, *MODELS])
def test_recorded_rounds_on_cuda_equal_the_loops(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Replays of dropout draw new numbers, the loop's; recurrent layers keep their weights in the state."""
    few = noise(116, 6) if model is normalized else load("digits", train=120, test=40)
    config = settings("consilience", "cuda", **PARTIAL_PARTICIPATION | {"epochs": 2})
    with stage("loop", config, few, models=[model]) as rounds:
        loop = run_rounds(rounds, ROUNDS)
    with stage("branches", config, few, models=[model]) as rounds:
        branches = run_rounds(rounds, ROUNDS)
        recorded = {key for graphs in graphs_of(rounds) for key in graphs._recorded}
        assert any(key[0] == "step" for key in recorded if isinstance(key, tuple)), recorded
        assert not any(graphs._not_recordable for graphs in graphs_of(rounds)), caplog.text
    assert_close(loop, branches)


def test_learners_in_groups_on_cuda_replay_the_same_graph() -> None:
    config = settings("fedavg", "cuda", learners=70, batch_size=4)
    many = load("digits", train=280, test=40)
    with stage("loop", config, many) as rounds:
        loop = run_rounds(rounds, ROUNDS)
    with stage("branches", config, many) as rounds:
        branches = run_rounds(rounds, ROUNDS)
        assert rounds.engine.memory.rows == [35] and len(rounds.engine.trainers) == 1  # type: ignore[attr-defined]
    assert_close(loop, branches)


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("model", [forgetful, lstm])
def test_same_seed_on_cuda_gives_the_same_bits_of_dropout(model: Callable[[], SplitModel], data: Dataset) -> None:
    config = settings("fedavg", "cuda", precision="float32", deterministic=True, **PARTIAL_PARTICIPATION)

    def bits() -> Arrays:
        with torch_configured_for(config), stage("branches", config, data, models=[model]) as rounds:
            return run_rounds(rounds, ROUNDS)[0]

    assert_same_bits(bits(), bits())


@pytest.mark.parametrize("model", ["resnet9", "resnet18"])
def test_large_models_in_bf16_on_cuda_learn_as_in_the_stack(model: str) -> None:
    """Rounding differs; losses stay close for a round, and weights are kept in float32."""
    config = settings(
        "fedavg", "cuda", model=model, learners=3, batch_size=8, precision="bf16", optimizer="sgd", lr=0.01
    )
    found = {}
    for engine in ("stack", "branches"):
        with stage(engine, config, noise(72, 16)) as rounds:
            arrays, records = run_rounds(rounds, 1)
            assert arrays["learners.0.parameters"].dtype == np.float32
            found[engine] = records[1]["loss.cross_entropy"]
    np.testing.assert_allclose(found["branches"], found["stack"], rtol=0.05)


class Reading(nn.Module):
    """Waits for a value of the GPU."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 + x.mean().item())


def reading() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), Reading(), nn.Linear(64, 16)), nn.Linear(16, 10))


class Deciding(nn.Module):
    """Draws numbers on the CPU, which a recording would repeat."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 if self.training and torch.rand(()) < 0.5 else 1.0)


def deciding() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), Deciding(), nn.Linear(64, 16)), nn.Linear(16, 10))


@pytest.mark.parametrize("model", [deciding, reading])
def test_what_cannot_be_recorded_on_cuda_is_launched_each_time(
    model: Callable[[], SplitModel], data: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings("fedavg", "cuda")
    with stage("loop", config, data, models=[model]) as rounds:
        loop = run_rounds(rounds, ROUNDS)
    with stage("branches", config, data, models=[model]) as rounds:
        branches = run_rounds(rounds, ROUNDS)
        assert any(graphs._not_recordable for graphs in graphs_of(rounds))
    assert "a step cannot be recorded as a CUDA graph" in caplog.text
    assert_close(loop, branches)


def test_branches_on_cuda_need_activations_of_a_few_learners_only() -> None:
    """Forty learners: the stack keeps the activations of a group of twenty, the branches those of ten."""
    peaks: dict[str, int] = {}
    config = settings("fedavg", "cuda", model="resnet9", learners=40, batch_size=32, precision="float32")
    data = noise(40 * 32, 28)
    for engine in ("stack", "branches"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with stage(engine, config, data) as rounds:
            run_rounds(rounds, 4)
            peaks[engine] = torch.cuda.max_memory_allocated()
    assert peaks["branches"] < peaks["stack"], peaks


def test_auto_on_cuda_measures_both_engines_once(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path))
    monkeypatch.setattr(choose, "_AUTO_BRANCHES", True)
    caplog.set_level("INFO", "consilience")
    config = settings("fedavg", "cuda", rounds=500, precision="float32")
    setup = build_setup(config, build_method("fedavg"), data, ["mlp"])
    with torch_configured_for(config):
        first, again = (choose_engine(config, setup) for _ in range(2))
    assert first == again and first in ("stack", "branches") and (tmp_path / "engines.json").is_file()
    assert "cannot be measured" not in caplog.text
    assert [text.rpartition("(")[2] for text in caplog.messages if text.startswith("engine ")] == [
        "measured now)",
        "measured before)",
    ]
    with torch_configured_for(config), open_engine(config, setup, first) as engine:
        assert engine.name == first


@pytest.mark.parametrize("case", ["fedavg", "two-stage", "federated-distillation"])
def test_smaller_groups_on_cuda_give_the_same_results(case: str, data: Dataset) -> None:
    config = settings(case, "cuda", learners=6)
    found: list[Played] = []
    for rows in (6, 2):
        with stage("branches", config, data) as rounds:
            rounds.engine.memory.rows[0] = rows  # type: ignore[attr-defined]
            found.append(run_rounds(rounds, ROUNDS))
    assert_close(found[0], found[1])
