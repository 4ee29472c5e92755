"""On a GPU, what the engines' contract suite runs on a CPU only: other kinds of tasks, no labels, privacy, own models.

Each step is run twice before it is recorded, so that most of the rounds are replays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consilience import simulate
from consilience.data import Dataset, load
from consilience.simulation.engines import choose
from tests.contract.test_unlabeled_contract import CASES as UNLABELED
from tests.contract.test_unlabeled_contract import PARTIAL_PARTICIPATION, assert_engines_agree, timeless
from tests.contract.test_unlabeled_contract import settings as unlabeled

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
SMALL: dict[str, Any] = {"learners": 4, "rounds": 5, "batch_size": 16, "workers": 0, "lr": 0.01, "precision": "float64"}


def frozen_backbone() -> nn.Module:
    """A frozen part with BatchNorm, and layers that are trained."""
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(frozen, nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 10))


def small_network() -> nn.Module:
    """A convolution, running statistics, a counter of batches and pooling."""
    pooled = nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *pooled, nn.Linear(4, 10))


RUNS: dict[str, dict[str, Any]] = {
    "labels": {"data": "digit-pairs", "method": "consilience"},
    "labels, absent": {"data": "digit-pairs", "method": "consilience", **PARTIAL_PARTICIPATION},
    "numbers": {"data": "diabetes", "method": "consilience"},
    "numbers, absent": {"data": "diabetes", "method": "fedproto", **PARTIAL_PARTICIPATION},
    "private uploads": {"method": "representation-sharing", "private": "upload", "epsilon": 50.0, "model": "mlp"},
    "private training": {"method": "representation-sharing", "private": "training", "epsilon": 50.0, "model": "mlp"},
    "private training, absent": {
        "method": "fedavg", "private": "training", "epsilon": 50.0, "model": "mlp", "offline": 0.3, "seeds": 2
    },
    "own models": {"method": "consilience", "partition": "dirichlet(0.3)", "validation": 0.2, "model": small_network},
    "frozen backbone": {"method": "consilience", "model": frozen_backbone, "partition": "dirichlet(0.5)"},
    "rotated images": {"method": "consilience", "shift": "rotate(30)", "model": small_network, "metrics": "f1"},
    "split learning": {"method": "split-learning", "model": "lenet5"},
}  # fmt: skip


@pytest.mark.parametrize("engine", ["stack", "branches"])
@pytest.mark.parametrize("case", list(RUNS))
def test_loop_equals_other_engines_on_cuda(case: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_BRANCHING", ("cpu", "cuda"))
    asked: dict[str, Any] = {**SMALL, "data": "digits", "train": 120, "test": 40, "device": DEVICE} | RUNS[case]
    loop, other = (simulate(**asked | {"engine": each}) for each in ("loop", engine))
    assert other.engine == engine
    for metric in timeless(loop.history):
        one, two = loop.history[metric], other.history[metric]
        largest = np.abs(np.nan_to_num(one)).max(initial=0.0)
        np.testing.assert_allclose(two, one, rtol=0, atol=max(1e-9 * largest, 1e-12), err_msg=metric)


@pytest.mark.parametrize("engine", ["stack", "branches"])
@pytest.mark.parametrize("case", list(UNLABELED))
def test_loop_equals_other_engines_without_labels_on_cuda(
    case: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_BRANCHING", ("cpu", "cuda"))
    data: Dataset = load("digits", train=120, test=40)
    assert_engines_agree(unlabeled(case, device=DEVICE, **PARTIAL_PARTICIPATION), data, tmp_path, engine)
