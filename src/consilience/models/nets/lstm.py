"""Recurrent networks that read text character by character and predict the next one.

The LSTM of the FedAvg paper (McMahan et al., 2017): characters embedded in 8 numbers, two layers of 256. `device-lstm`
is the same with a cut: one layer on the device, reduced to 64 numbers per character, and one layer on the server.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.models.cut import cut
from consilience.models.split_model import SplitModel, tanh_split_model

EMBEDDED, HIDDEN, NARROW = 8, 256, 64


class Characters(nn.Embedding):
    """Codes of characters (n, length), as floats or whole numbers -> vectors (n, length, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """Look each character up."""
        return super().forward(x.long())


class Recurrent(nn.Module):
    """An LSTM's output at every position: (n, length, inputs) -> (n, length, width) in (-1, 1)."""

    def __init__(self, inputs: int, width: int, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, num_layers=layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's outputs, without its state."""
        outputs: Tensor = self.lstm(x)[0]
        return outputs


class Last(nn.Module):
    """The last position of a sequence: (n, length, width) -> (n, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """Select the last position."""
        return x[:, -1]


def lstm(shape: tuple[int, ...], classes: int, width: int = HIDDEN) -> SplitModel:
    """Two LSTM layers for text of this length; 817,800 parameters for 72 characters."""
    _refuse_other("lstm", shape)
    parts = {
        "characters": Characters(classes, EMBEDDED),
        "sequence": Recurrent(EMBEDDED, width, layers=2),
        "last": Last(),
    }
    return tanh_split_model(nn.Sequential(OrderedDict(parts)), width, classes)


def device_lstm(shape: tuple[int, ...], classes: int, width: int = HIDDEN) -> SplitModel:
    """LSTM layers on device and server, 64 numbers per character between them; 637,640 parameters for 72."""
    _refuse_other("device-lstm", shape)
    device = {
        "characters": Characters(classes, EMBEDDED),
        "sequence": Recurrent(EMBEDDED, HIDDEN),
        "narrow": nn.Linear(HIDDEN, NARROW),  # (n, length, 64)
    }
    server = {"sequence": Recurrent(NARROW, width), "last": Last()}
    parts = {"device": nn.Sequential(OrderedDict(device)), "server": nn.Sequential(OrderedDict(server))}
    return cut(tanh_split_model(nn.Sequential(OrderedDict(parts)), width, classes), at="device")


def _refuse_other(model: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs that are not text."""
    if len(shape) != 1:
        raise ConfigurationError(
            f"model {model!r} takes text, codes of characters of the shape (length,), got {tuple(shape)}; "
            f"use model 'lenet5' for images, or 'mlp' for inputs of any other shape"
        )
