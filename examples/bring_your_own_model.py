"""Somebody's own network becomes a learner's model: nothing in it is rewritten.

`Net` is an ordinary convolutional network that ends in a log-softmax and knows nothing of this library. `split` cuts it
at the linear layer that makes the logits: what that layer reads are the features learners may share, and the softmax
after it is left out, for cross-entropy takes logits.

    python examples/bring_your_own_model.py

The command does the same with `--model net.py:Net@fc`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience import SplitModel, simulate
from consilience.models import split


class Net(nn.Module):
    """A network as it is found in the wild."""

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


def own_net() -> SplitModel:
    """A new one each time it is called, for every learner needs weights of its own."""
    return split(Net(), at="fc")


def main() -> None:
    """Show where the network is cut, then train it alone and together."""
    net = Net()
    model = split(net, at="fc")
    images = torch.zeros(5, 1, 8, 8)
    same = torch.allclose(F.log_softmax(model(images), dim=1), net(images))
    print(f"features {tuple(model.features(images).shape)}, logits {tuple(model(images).shape)}")
    print(f"parameters {sum(p.numel() for p in model.parameters()):,}, as in the network itself: {same}")
    for method in ("independent", "representation-sharing"):
        result = simulate(
            method=method, model=own_net, learners=4, train=200, epochs=5, rounds=30, eval_every=30, workers=0
        )
        shared = result.message_bytes["up"]
        print(f"{method:24} {result.accuracy.mean():5.1f} %   {shared:6,} bytes up a round")


if __name__ == "__main__":
    main()
