"""Shared by the convolutional models: the check of an image's shape, and convolution blocks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from consilience.errors import ConfigurationError


def image_shape(model: str, shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """Channels, height and width; refuses inputs that are no images, or too small for the model's pooling."""
    if len(shape) != 3:
        raise ConfigurationError(
            f"model {model!r} takes images, inputs of the shape (channels, height, width), got {tuple(shape)}; "
            f"use model 'mlp' for inputs of any other shape"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigurationError(
            f"model {model!r} needs inputs of at least {smallest}x{smallest} pixels, "
            f"got {height}x{width}; use larger images or another model"
        )
    return channels, height, width


class ConvBlock(nn.Module):
    """A 3x3 convolution without bias (the normalization has one), BatchNorm, ReLU; a stride makes the image smaller."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, out, height / stride, width / stride), rounded up."""
        return F.relu(self.norm(self.conv(x)))


class Shortcut(nn.Module):
    """The shortcut of a block that changes the shape: a 1x1 convolution with the block's stride, and BatchNorm."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel_size=1, stride=stride, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, out, height / stride, width / stride), rounded up."""
        short: Tensor = self.norm(self.conv(x))
        return short


class Residual(nn.Module):
    """Two convolution blocks, both with ReLU, and then the shortcut is added, as published."""

    def __init__(self, channels: int, out: int | None = None, stride: int = 1) -> None:
        super().__init__()
        out = channels if out is None else out
        self.first = ConvBlock(channels, out, stride)
        self.second = ConvBlock(out, out)
        same = stride == 1 and out == channels
        self.shortcut = nn.Identity() if same else Shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, out, height / stride, width / stride), rounded up."""
        block: Tensor = self.second(self.first(x))
        short: Tensor = self.shortcut(x)
        return block + short


def global_average_pool(x: Tensor) -> Tensor:
    """The average over all positions of an image, (n, channels, height, width) -> (n, channels)."""
    # A sum, not a mean: the gradient of a mean is copied to another memory layout, a tenth of a step's time.
    return x.sum(dim=(-2, -1)) / (x.shape[-2] * x.shape[-1])


class GlobalAveragePool(nn.Module):
    """`global_average_pool` as a layer, after which a model can be cut."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, channels)."""
        return global_average_pool(x)
