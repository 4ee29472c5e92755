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
_SMALLEST_UNPADDED = 16  # and two convolutions take off four pixels each
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


def cnn5_small(shape: tuple[int, ...], classes: int, width: int = 192) -> SplitModel:
    """Two 5x5 convolutions with 32 and 64 planes without padding, pools, and layers of 224 and 192.

    457,450 parameters for CIFAR-10: the network that the transmitted values of Ma et al. 2020 imply has 458,600.
    """
    channels, height, wide = image_shape("cnn5-small", shape, _SMALLEST_UNPADDED)
    left = [((side - 4) // 2 - 4) // 2 for side in (height, wide)]
    features = nn.Sequential(
        *_convolutions(channels, padding=0),
        nn.Linear(64 * left[0] * left[1], 224),
        nn.ReLU(),
        nn.Linear(224, width),
        nn.ReLU(),
    )
    return cut(SplitModel(features, nn.Linear(width, classes)), at="5")


def device_cnn(shape: tuple[int, ...], classes: int, width: int = SERVER_WIDTH) -> SplitModel:
    """The network `cnn` on the device, with a layer that sends 8 small planes to a server of two convolutions.

    For MNIST 1,859,336 parameters of the device and 21,482 of the server, which reads 392 numbers instead of 784
    pixels.
    """
    device, places = _device("device-cnn", shape)
    server = nn.Sequential(
        nn.Conv2d(_PLANES, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return _with_server(device, server, (places[0] // 4) * (places[1] // 4) * 64, width, classes)


def device_cnn_medium(shape: tuple[int, ...], classes: int, width: int = 64) -> SplitModel:
    """The device of `device-cnn` with a server of two 5x5 convolutions with 32 and 64 planes, and their mean.

    58,346 parameters of the server: what Ma et al. 2020 transmit for CIFAR-10 implies 56,900.
    """
    device, _ = _device("device-cnn-medium", shape)
    server = nn.Sequential(
        nn.Conv2d(_PLANES, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return _with_server(device, server, 64, width, classes)


def device_cnn_large(shape: tuple[int, ...], classes: int, width: int | None = None) -> SplitModel:
    """The device of `device-cnn` with a server of two 5x5 convolutions with 96 and 128 planes.

    For MNIST 338,154 parameters of the server: what Ma et al. 2020 transmit implies 345,200.
    """
    device, places = _device("device-cnn-large", shape)
    server = nn.Sequential(
        nn.Conv2d(_PLANES, 96, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(96, 128, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.Flatten(),
    )
    left = (places[0] // 2) * (places[1] // 2) * 128
    return _with_server(device, server, left, width or left, classes)


def _device(name: str, shape: tuple[int, ...]) -> tuple[nn.Sequential, tuple[int, int]]:
    """The network `cnn` up to 512 numbers, and a layer to 8 planes of a sixteenth of the image, with their sides."""
    channels, height, wide = image_shape(name, shape, 4 * SMALLEST)
    places = height // 4, wide // 4
    device = nn.Sequential(
        *_convolutions(channels),
        nn.Linear(64 * places[0] * places[1], 512),
        nn.ReLU(),
        nn.Linear(512, _PLANES * places[0] * places[1]),
        nn.Unflatten(1, (_PLANES, *places)),
    )
    return device, places


def _with_server(device: nn.Sequential, server: nn.Sequential, left: int, width: int, classes: int) -> SplitModel:
    """Device and server as one model; a server that ends in `left` numbers has one more layer for another width."""
    if width != left:
        server.extend([nn.Linear(left, width), nn.ReLU()])
    features = nn.Sequential(OrderedDict(device=device, server=server))
    return cut(SplitModel(features, nn.Linear(width, classes)), at="device")


def _convolutions(channels: int, planes: int = 32, padding: int = 2) -> list[nn.Module]:
    """The convolutions of all networks: images -> (n, 64 * places), with padding a sixteenth of the pixels."""
    return [
        nn.Conv2d(channels, planes, kernel_size=5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(planes, 64, kernel_size=5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
