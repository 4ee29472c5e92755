"""A small multilayer perceptron, for the digits, for tables, and for quick tests."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilience.models.cut import cut
from consilience.models.split_model import SplitModel, tanh_split_model

HIDDEN = 64
WIDTH = 32


class MLPFeatures(nn.Module):
    """Inputs (n, *shape) -> features (n, width) in (-1, 1)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, HIDDEN)
        self.linear = nn.Linear(HIDDEN, width)

    def forward(self, x: Tensor) -> Tensor:
        """Flatten, linear, ReLU, linear, tanh."""
        x = F.relu(self.hidden(x.flatten(1)))  # (n, 64)
        return torch.tanh(self.linear(x))  # (n, width)


def mlp(shape: tuple[int, ...], classes: int, width: int = WIDTH) -> SplitModel:
    """The perceptron for inputs of any shape; 6,570 parameters for the digits."""
    return cut(tanh_split_model(MLPFeatures(math.prod(shape), width), width, classes), at="hidden")
