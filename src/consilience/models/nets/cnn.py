"""Convolutional networks of the federated averaging experiments (McMahan et al. 2017), and one with a cut."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from consilience.models.cut import cut
from consilience.models.nets.blocks import image_shape
from consilience.models.split_model import SplitModel

WIDTH = 512
SERVER_WIDTH = 64
SMALLEST = 4  # two pools halve the image twice
_PLANES = 8  # of the cut layer's output


def cnn(shape: tuple[int, ...], classes: int, width: int = WIDTH) -> SplitModel:
    """Two 5x5 convolutions with 32 and 64 planes, pools, and a layer of 512; 1,663,370 parameters for MNIST."""
    channels, height, wide = image_shape("cnn", shape, SMALLEST)
    features = nn.Sequential(*_convolutions(channels), nn.Linear(64 * (height // 4) * (wide // 4), width), nn.ReLU())
    return cut(SplitModel(features, nn.Linear(width, classes)), at="5")


def cnn5(shape: tuple[int, ...], classes: int, width: int = 192) -> SplitModel:
    """Two 5x5 convolutions with 64 planes, pools, and layers of 384 and 192; 1,756,426 parameters for CIFAR-10."""
    channels, height, wide = image_shape("cnn5", shape, SMALLEST)
    features = nn.Sequential(
        *_convolutions(channels, 64),
        nn.Linear(64 * (height // 4) * (wide // 4), 384),
        nn.ReLU(),
        nn.Linear(384, width),
        nn.ReLU(),
    )
    return cut(SplitModel(features, nn.Linear(width, classes)), at="5")


def device_cnn(shape: tuple[int, ...], classes: int, width: int = SERVER_WIDTH) -> SplitModel:
    """The network `cnn` on the device, with a layer that sends 8 small planes to a server of two convolutions.

    For MNIST 1,859,336 parameters of the device and 21,482 of the server, which reads 392 numbers instead of 784
    pixels.
    """
    channels, height, wide = image_shape("device-cnn", shape, 4 * SMALLEST)
    places = height // 4, wide // 4
    device = nn.Sequential(
        *_convolutions(channels),
        nn.Linear(64 * places[0] * places[1], 512),
        nn.ReLU(),
        nn.Linear(512, _PLANES * places[0] * places[1]),
        nn.Unflatten(1, (_PLANES, *places)),
    )
    server = nn.Sequential(
        nn.Conv2d(_PLANES, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    left = (places[0] // 4) * (places[1] // 4) * 64
    if width != left:
        server.extend([nn.Linear(left, width), nn.ReLU()])
    features = nn.Sequential(OrderedDict(device=device, server=server))
    return cut(SplitModel(features, nn.Linear(width, classes)), at="device")


def _convolutions(channels: int, planes: int = 32) -> list[nn.Module]:
    """The convolutions of both networks: images -> (n, 64 * height / 4 * width / 4)."""
    return [
        nn.Conv2d(channels, planes, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(planes, 64, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
