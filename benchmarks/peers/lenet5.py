"""LeNet5 as plain torch modules, for libraries that know nothing of consilience: the same layers, 30,986 parameters."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet5(nn.Module):
    """Images (n, 1, 28, 28) -> logits (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(  # (n, 1, 28, 28) -> (n, 84)
            nn.Conv2d(1, 6, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 120, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(120, 84),
            nn.Tanh(),
        )
        self.head = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x))
        return logits
