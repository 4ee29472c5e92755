"""LeNet5, the small convolutional network of the representation-sharing experiments on MNIST."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilience.models.cut import cut
from consilience.models.nets.blocks import GlobalAveragePool, image_shape
from consilience.models.split_model import SplitModel, tanh_split_model

WIDTH = 84
SMALLEST = 4  # two pools halve the image twice


class LeNet5Features(nn.Module):
    """Images (n, channels, height, width) -> features (n, width) in (-1, 1)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5, padding=2)
        self.conv3 = nn.Conv2d(16, 120, kernel_size=3, padding=1)
        self.pool = GlobalAveragePool()
        self.linear = nn.Linear(120, width)

    def forward(self, x: Tensor) -> Tensor:
        """Three convolutions, averaged over all positions, then linear and tanh."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # (n, 6, height / 2, width / 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # (n, 16, height / 4, width / 4)
        x = F.relu(self.conv3(x))  # (n, 120, height / 4, width / 4)
        return torch.tanh(self.linear(self.pool(x)))  # (n, 120) -> (n, width)


def lenet5(shape: tuple[int, ...], classes: int, width: int = WIDTH) -> SplitModel:
    """LeNet5 for images of this shape; 30,986 parameters for MNIST."""
    channels, _, _ = image_shape("lenet5", shape, SMALLEST)
    return cut(tanh_split_model(LeNet5Features(channels, width), width, classes), at="conv2")
