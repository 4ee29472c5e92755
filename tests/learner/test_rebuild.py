"""Flat vectors of a learner's state, put back into a module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from consilience.errors import CheckpointError
from consilience.learner.layout import Layout
from consilience.learner.rebuild import ModelKind
from consilience.models import cut, split


class Net(nn.Module):
    """A convolution, a norm with a count of batches, two linear layers, and a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.hidden, self.fc = nn.Linear(12, 5), nn.Linear(5, 4)
        self.conv.bias.requires_grad_(False)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        """(n, 2, 4, 4) -> (n, 4)."""
        logits: Tensor = self.fc(torch.relu(self.hidden(self.norm(self.conv(x)).flatten(1))))
        return logits


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("build", [Net, lambda: split(Net(), at="fc"), lambda: cut(Net(), at="conv")])
def test_the_user_s_module_gets_its_weights_back(build: type[nn.Module], channels_last: bool) -> None:
    trained = Net().train()
    trained(torch.randn(6, 2, 4, 4))  # moves the norm's buffers
    whole = split(trained, at="fc")

    def flat(named: dict[str, Tensor], beside: float) -> Tensor:
        layout = Layout({name: tuple(t.shape) for name, t in named.items()}, channels_last=channels_last)
        return torch.cat([layout.flat(named).detach(), torch.full((7,), beside)])  # as exchanges' own modules follow

    buffers = dict(whole.named_buffers())
    vectors = {
        "parameters": flat(dict(whole.named_parameters()), 9.0),
        "buffers": flat({k: b for k, b in buffers.items() if b.is_floating_point()}, 9.0),
        "other_buffers.int64": flat({k: b for k, b in buffers.items() if not b.is_floating_point()}, 9),
    }
    made = ModelKind(build, "net", True, channels_last=channels_last).rebuild(vectors).original
    assert type(made) is Net and not made.training and not made.conv.bias.requires_grad  # type: ignore[union-attr]
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name]), name
    inputs = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(made(inputs), trained.eval()(inputs))


def test_fewer_values_than_the_model_has_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"model 'net' has \d+ values, and 3 were saved"):
        ModelKind(Net, "net", True).rebuild({"parameters": torch.zeros(3), "buffers": torch.zeros(0)})
