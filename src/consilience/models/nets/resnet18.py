"""ResNet18, the residual network of the representation-sharing experiments on CIFAR-10."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from consilience.models.cut import cut
from consilience.models.nets.blocks import ConvBlock, Residual, global_average_pool, image_shape
from consilience.models.split_model import SplitModel, tanh_split_model

WIDTH = 256


class ResNet18Features(nn.Module):
    """Images (n, channels, height, width) -> features (n, width) in (-1, 1)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.block = ConvBlock(channels, 64)
        self.pair1 = _pair(64, 64, stride=1)
        self.pair2 = _pair(64, 128, stride=2)
        self.pair3 = _pair(128, 256, stride=2)
        self.pair4 = _pair(256, 512, stride=2)
        self.linear = nn.Linear(512, width)

    def forward(self, x: Tensor) -> Tensor:
        """A convolution and eight residual blocks, averaged over all positions, then linear and tanh."""
        x = self.pair1(self.block(x))  # (n, 64, height, width)
        x = self.pair4(self.pair3(self.pair2(x)))  # (n, 512, height / 8, width / 8), rounded up
        return torch.tanh(self.linear(global_average_pool(x)))  # (n, 512) -> (n, width)


def _pair(channels: int, out: int, stride: int) -> nn.Sequential:
    """Two residual blocks; the first changes channels and size."""
    return nn.Sequential(Residual(channels, out, stride), Residual(out))


def resnet18(shape: tuple[int, ...], classes: int, width: int = WIDTH) -> SplitModel:
    """ResNet18 for images of this shape, however small; 11,302,730 parameters for CIFAR-10."""
    channels, _, _ = image_shape("resnet18", shape)
    return cut(tanh_split_model(ResNet18Features(channels, width), width, classes), at="pair3")
