"""Encoders for learning representations: residual networks as published, whose features are the last average pooling.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016. Two details follow
later practice: a bottleneck's stride is in its 3x3 convolution, and small images get a small first convolution.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from consilience.models.nets.blocks import ConvBlock, Shortcut, global_average_pool, image_shape
from consilience.models.split_model import SplitModel

SMALL = 64  # pixels per side up to which the first convolution keeps an image's size


class ConvNorm(nn.Module):
    """A convolution without bias, and BatchNorm."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, out, height / stride, width / stride), rounded up."""
        normed: Tensor = self.norm(self.conv(x))
        return normed


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the shortcut, then the second ReLU."""

    widening = 1

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.first = ConvBlock(channels, inner, stride)
        self.second = ConvNorm(inner, inner, 3)
        self.shortcut = _shortcut(channels, inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, inner, height / stride, width / stride), rounded up."""
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1x1 convolution to fewer channels, a 3x3 one, a 1x1 one to four times as many; the shortcut, then ReLU."""

    widening = 4

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        out = self.widening * inner
        self.first = ConvNorm(channels, inner, 1)
        self.second = ConvBlock(inner, inner, stride)
        self.third = ConvNorm(inner, out, 1)
        self.shortcut = _shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, 4 x inner, height / stride, width / stride), rounded up."""
        inner = self.second(F.relu(self.first(x)))
        return F.relu(self.third(inner) + self.shortcut(x))


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    same = stride == 1 and out == channels
    return nn.Identity() if same else Shortcut(channels, out, stride)


class Encoder(nn.Module):
    """Images (n, channels, height, width) -> features (n, width), each 0 or more."""

    def __init__(
        self, shape: tuple[int, int, int], block: type[BasicBlock | Bottleneck], blocks: tuple[int, ...]
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.large = max(height, width) > SMALL
        self.stem = ConvNorm(channels, 64, 7, stride=2) if self.large else ConvNorm(channels, 64, 3)
        stages: list[nn.Module] = []
        self.width = 64
        for stage, count in enumerate(blocks):  # each with twice the channels and half the size of the one before
            inner = 64 * 2**stage
            for number in range(count):
                stages.append(block(self.width, inner, stride=2 if stage and not number else 1))
                self.width = block.widening * inner
        self.blocks = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """The first convolution, with a pool where images are large, the blocks, and the average over all positions."""
        x = F.relu(self.stem(x))  # (n, 64, height, width), or half of each where images are large
        if self.large:
            x = F.max_pool2d(x, 3, stride=2, padding=1)  # a quarter of each
        return global_average_pool(self.blocks(x))  # (n, width)


def encoder18(shape: tuple[int, ...], classes: int) -> SplitModel:
    """ResNet18 for images of this shape, features of width 512; 11,173,962 parameters for CIFAR-10."""
    return _split(Encoder(image_shape("encoder18", shape), BasicBlock, (2, 2, 2, 2)), classes)


def encoder50(shape: tuple[int, ...], classes: int) -> SplitModel:
    """ResNet50 for images of this shape, features of width 2048; 23,520,842 parameters for CIFAR-10."""
    return _split(Encoder(image_shape("encoder50", shape), Bottleneck, (3, 4, 6, 3)), classes)


def _split(encoder: Encoder, classes: int) -> SplitModel:
    return SplitModel(encoder, nn.Linear(encoder.width, classes))
