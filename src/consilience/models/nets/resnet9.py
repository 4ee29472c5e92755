"""ResNet9, the residual network of the representation-sharing experiments on Fashion-MNIST."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilience.models.cut import cut
from consilience.models.nets.blocks import ConvBlock, Residual, image_shape
from consilience.models.split_model import SplitModel, tanh_split_model

WIDTH = 128
SMALLEST = 16  # four pools halve the image four times


class ResNet9Features(nn.Module):
    """Images (n, channels, height, width) -> features (n, features) in (-1, 1)."""

    def __init__(self, shape: tuple[int, int, int], features: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.block1 = ConvBlock(channels, 64)
        self.block2 = ConvBlock(64, 128)
        self.residual1 = Residual(128)
        self.block3 = ConvBlock(128, 256)
        self.block4 = ConvBlock(256, 256)
        self.residual2 = Residual(256)
        # Images below 32x32 end as a single position; of larger ones every remaining position is read.
        self.linear = nn.Linear(256 * (height // 16) * (width // 16), features)

    def forward(self, x: Tensor) -> Tensor:
        """Four convolutions and two residual blocks with four pools between them, then linear and tanh."""
        x = F.max_pool2d(self.block2(self.block1(x)), 2)  # (n, 128, height / 2, width / 2)
        x = F.max_pool2d(self.block3(self.residual1(x)), 2)  # (n, 256, height / 4, width / 4)
        x = F.max_pool2d(self.block4(x), 2)  # (n, 256, height / 8, width / 8)
        x = F.max_pool2d(self.residual2(x), 2)  # (n, 256, height / 16, width / 16)
        return torch.tanh(self.linear(x.flatten(1)))  # (n, features)


def resnet9(shape: tuple[int, ...], classes: int, width: int = WIDTH) -> SplitModel:
    """ResNet9 for images of this shape; 2,470,730 parameters for Fashion-MNIST."""
    return cut(
        tanh_split_model(ResNet9Features(image_shape("resnet9", shape, SMALLEST), width), width, classes), at="block4"
    )
