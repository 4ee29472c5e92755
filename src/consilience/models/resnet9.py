"""ResNet9, the residual network of the representation-sharing experiments on Fashion-MNIST."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilience.models.split import SplitModel, head, refuse_small

WIDTH = 128
SMALLEST = 16  # four pools halve the image four times


class ConvBlock(nn.Module):
    """A 3x3 convolution without bias (the normalisation has one), BatchNorm, ReLU; the image keeps its size."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, out, height, width)."""
        return F.relu(self.norm(self.conv(x)))


class Residual(nn.Module):
    """Two convolution blocks, the second with its ReLU as well, and only then the shortcut, as published."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ConvBlock(channels, channels)
        self.second = ConvBlock(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> the same shape."""
        block: Tensor = self.second(self.first(x))
        return block + x


class ResNet9Features(nn.Module):
    """Images (n, channels, height, width) -> features (n, 128) in (-1, 1)."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        self.block1 = ConvBlock(channels, 64)
        self.block2 = ConvBlock(64, 128)
        self.residual1 = Residual(128)
        self.block3 = ConvBlock(128, 256)
        self.block4 = ConvBlock(256, 256)
        self.residual2 = Residual(256)
        # Images below 32x32 end as a single place; of larger ones every place that is left is read.
        self.linear = nn.Linear(256 * (height // 16) * (width // 16), WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Four convolutions and two residual blocks with four pools between them, then linear and tanh."""
        x = F.max_pool2d(self.block2(self.block1(x)), 2)  # (n, 128, height / 2, width / 2)
        x = F.max_pool2d(self.block3(self.residual1(x)), 2)  # (n, 256, height / 4, width / 4)
        x = F.max_pool2d(self.block4(x), 2)  # (n, 256, height / 8, width / 8)
        x = F.max_pool2d(self.residual2(x), 2)  # (n, 256, height / 16, width / 16)
        return torch.tanh(self.linear(x.flatten(1)))  # (n, 128)


def resnet9(shape: tuple[int, int, int], classes: int) -> SplitModel:
    """ResNet9 for inputs of this shape; 2,470,730 parameters for Fashion-MNIST."""
    refuse_small("resnet9", shape, SMALLEST)
    return head(ResNet9Features(shape), WIDTH, classes)
