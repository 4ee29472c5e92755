"""Flat vectors of a learner's state, put back into a module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from consilience.errors import CheckpointError, ConfigurationError
from consilience.learner.layout import Layout
from consilience.learner.rebuild import ModelKind
from consilience.models import cut, split
from consilience.models.frozen import build_with_frozen_part, frozen_digest, frozen_tensors, trained_tensors


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
    trained = build_with_frozen_part(Net).original.train()
    trained(torch.randn(6, 2, 4, 4))  # moves the norm's buffers
    whole = split(trained, at="fc")

    def flat(named: dict[str, Tensor], beside: float) -> Tensor:
        layout = Layout({name: tuple(t.shape) for name, t in named.items()}, channels_last=channels_last)
        return torch.cat([layout.flat(named).detach(), torch.full((7,), beside)])  # as exchanges' own modules follow

    parameters, buffers = trained_tensors(whole)
    assert len(parameters) == len(list(whole.parameters())) - 1  # without the bias that is frozen
    vectors = {
        "parameters": flat(parameters, 9.0),
        "buffers": flat({k: b for k, b in buffers.items() if b.is_floating_point()}, 9.0),
        "other_buffers.int64": flat({k: b for k, b in buffers.items() if not b.is_floating_point()}, 9),
    }
    made = ModelKind(build, "net", True, channels_last=channels_last).rebuild(vectors).original
    assert type(made) is Net and not made.training and not made.conv.bias.requires_grad  # type: ignore[union-attr]
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name]), name
    inputs = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(made(inputs), trained.eval()(inputs))


def test_other_values_of_the_frozen_part_are_refused() -> None:
    """What the vectors leave out must be what the learners were trained with."""

    class Changed(Net):
        def __init__(self) -> None:
            super().__init__()
            with torch.no_grad():
                self.conv.bias.add_(torch.rand(3) + 1)  # type: ignore[union-attr]

    before = frozen_digest(frozen_tensors(build_with_frozen_part(Net)))
    kind = ModelKind(Changed, "net", True, frozen_sha256=before)
    with pytest.raises(ConfigurationError, match=r"model 'net': its frozen part .*other values .*load them from"):
        kind.rebuild({"parameters": torch.zeros(200), "buffers": torch.zeros(6)})


def test_fewer_values_than_the_model_has_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"model 'net' has \d+ values, and 3 were saved"):
        ModelKind(Net, "net", True).rebuild({"parameters": torch.zeros(3), "buffers": torch.zeros(0)})
