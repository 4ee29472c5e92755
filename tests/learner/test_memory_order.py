"""Models that need images with their channels first in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import simulate
from consilience.errors import ConfigurationError
from consilience.learner.memory_order import accept_channels_last

SIZE: dict[str, Any] = {"data": "digits", "train": 60, "test": 50, "learners": 2, "rounds": 2, "workers": 0, "lr": 0.01}


class Net(nn.Module):
    """A convolution and a linear layer, with what is between them."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.between = between
        self.conv, self.norm, self.fc = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        flat = x.view(len(x), -1) if self.between == "view" else x.flatten(1)
        logits: Tensor = self.fc(flat)
        return logits


def viewing() -> Net:
    return Net("view")


def flattening() -> Net:
    return Net("flatten")


@pytest.mark.parametrize("engine", ["loop", "stack"])
@pytest.mark.parametrize("method", ["fedavg", "consilience"])
def test_a_model_with_view_after_a_convolution_trains_like_one_with_flatten(engine: str, method: str) -> None:
    how: dict[str, Any] = {"engine": engine, "method": method, "precision": "float64", "validation": 0.2, **SIZE}
    one, other = (simulate(model=model, **how) for model in (viewing, flattening))
    assert one.accuracy.tolist() == other.accuracy.tolist()
    losses = {
        key: float(np.nansum(values))
        for key, values in {k: one.history[k] for k in one.history}.items()
        if key.startswith("loss.")
    }
    assert losses and losses == pytest.approx(
        {key: float(np.nansum(other.history[key])) for key in losses}, rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize(("between", "hooks"), [("view", 1), ("flatten", 0)])
def test_only_a_model_that_needs_it_is_changed(between: str, hooks: int) -> None:
    model, images = Net(between), torch.randn(2, 1, 8, 8)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    generator = torch.random.get_rng_state()
    accept_channels_last([model], lambda: model(images), torch.device("cpu"))
    assert len(model.conv._forward_hooks) == hooks and model.training and model.norm.training
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert model.conv.weight.is_contiguous() and torch.random.get_rng_state().equal(generator)


def test_a_model_that_cannot_run_at_all_stays_as_it_is() -> None:
    model = Net("view")
    assert accept_channels_last([model], lambda: model(torch.zeros(2, 5)), torch.device("cpu"))
    assert not model.conv._forward_hooks


class OwnKernels(nn.Module):
    """A convolution that is no module, so nothing can be done about what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.fc = nn.Parameter(torch.ones(3, 1, 3, 3)), nn.Linear(3 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(nn.functional.conv2d(x, self.kernels, padding=1).view(len(x), -1))
        return logits


def test_a_model_that_cannot_be_helped_is_refused_with_what_to_do() -> None:
    """Where it would train, and not where it is only described."""
    model, images = OwnKernels(), torch.randn(2, 1, 8, 8)
    assert not accept_channels_last([model], lambda: model(images), torch.device("cpu"))
    with pytest.raises(ConfigurationError, match=r"'OwnKernels' cannot run .* use x.flatten\(1\) or x.reshape"):
        simulate(model=OwnKernels, method="fedavg", **SIZE)
