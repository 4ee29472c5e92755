"""Use an existing network as a learner's model without changing its code.

`Net` is an ordinary convolutional network that ends in a log-softmax. `split` divides it before the linear layer that
outputs the logits. The inputs of that layer are the features that learners share. The log-softmax is left out, because
cross-entropy takes logits.

    python examples/bring_your_own_model.py

On the command line, `--model net.py:Net@fc` does the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience import SplitModel, simulate
from consilience.models import split


class Net(nn.Module):
    """An ordinary network that knows nothing of this library."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.second = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.hidden = nn.Linear(16 * 2 * 2, 48)
        self.fc = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 1, 8, 8) -> log-probabilities (n, 10)."""
        x = F.max_pool2d(F.relu(self.first(x)), 2)  # (n, 8, 4, 4)
        x = F.max_pool2d(F.relu(self.second(x)), 2)  # (n, 16, 2, 2)
        x = F.relu(self.hidden(x.flatten(1)))  # (n, 48)
        return F.log_softmax(self.fc(x), dim=1)  # (n, 10)


def build_model() -> SplitModel:
    """Build a new model on every call, because every learner needs its own weights."""
    return split(Net(), at="fc")


def main() -> None:
    """Show where the network is split, then train it independently and with representation sharing."""
    net = Net()
    model = split(net, at="fc")
    images = torch.zeros(5, 1, 8, 8)
    same = torch.allclose(F.log_softmax(model(images), dim=1), net(images))
    print(f"features {tuple(model.features(images).shape)}, logits {tuple(model(images).shape)}")
    print(f"parameters {sum(p.numel() for p in model.parameters()):,}, same output as the network: {same}")
    for method in ("independent", "representation-sharing"):
        result = simulate(
            method=method, model=build_model, learners=4, train=200, epochs=5, rounds=30, eval_every=30, workers=0
        )
        upload = result.message_bytes["up"]
        print(f"{method:24} {result.accuracy.mean():5.1f} %   {upload:6,} bytes uploaded per round")


if __name__ == "__main__":
    main()
