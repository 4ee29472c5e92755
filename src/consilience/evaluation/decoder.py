"""Decoders that reconstruct images from codes: outputs of a model's layer for these images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilience.errors import ConfigurationError, TrainingError
from consilience.randomness import seed_of, uniform
from consilience.validation import check_integer, check_number

_CHANNELS, _WIDTH = (32, 16), 256  # of the hidden layers of decoders of images, and of other values
_CLAMP = 10.0  # standard deviations from the mean at which codes are clamped
_CHUNK = 1024  # codes that are decoded at once
_TOLERANCE = 1e-3  # by which pixels may exceed [0, 1]


@dataclass(frozen=True)
class DecoderSettings:
    """How a decoder is trained: Adam on the squared error. seed: of its initial weights and of the order of samples."""

    epochs: int = 30
    batch_size: int = 128
    lr: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs)
        check_integer("batch_size", self.batch_size)
        check_number("lr", self.lr)


_DEFAULTS = DecoderSettings()


@dataclass(frozen=True, eq=False)
class Decoder:
    """A trained decoder: codes (n, ...) to images (n, channels, height, width) in [0, 1], or to values (n, k)."""

    network: nn.Module
    mean: Tensor  # (width,) of the training codes
    deviation: Tensor  # (width,), infinite for a constant code
    mean_image: Tensor  # the mean of the training images
    peak: float  # 1 for images, the range of other values

    @torch.no_grad()
    def __call__(self, codes: Tensor) -> Tensor:
        """The images, or values, that codes are decoded to."""
        codes = _flat(codes).to(self.mean.device)
        if codes.shape[1] != len(self.mean):
            raise ConfigurationError(
                f"codes have {codes.shape[1]} values each, and the decoder was trained on {len(self.mean)}; "
                f"give codes of the same layer"
            )
        with _deterministic(codes):
            parts = torch.split(_standardized(codes, self.mean, self.deviation), _CHUNK)
            return torch.cat([self.network(part) for part in parts])


def train_decoder(
    codes: Tensor,
    images: Tensor,
    settings: DecoderSettings = _DEFAULTS,
) -> Decoder:
    """A decoder from codes (m, ...) to images (m, channels, height, width) in [0, 1], or to values (m, k).

    Codes are standardized and clamped to ten standard deviations; a constant code becomes 0. Training runs on the
    device of the codes. The same seed gives the same decoder, and torch's own generators are not used.
    """
    codes, images = _flat(codes), as_images(images).to(codes.device)
    same_samples(codes, images)
    network = _network(codes.shape[1], images, settings.seed)
    mean, deviation = _moments(codes)
    with _deterministic(codes), torch.enable_grad():
        _train(network, _standardized(codes, mean, deviation), images, settings)
    return Decoder(network.requires_grad_(False), mean, deviation, images.mean(0), _peak(images))


def _train(network: nn.Module, codes: Tensor, images: Tensor, settings: DecoderSettings) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    index = torch.arange(len(codes), device=codes.device)
    for epoch in range(settings.epochs):
        order = uniform("inversion", settings.seed, epoch, index).argsort()
        for batch in torch.split(order, settings.batch_size):
            optimizer.zero_grad()
            F.mse_loss(network(codes[batch]), images[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    if not all(bool(weights.isfinite().all()) for weights in network.parameters()):
        raise TrainingError(
            f"weights of the decoder are NaN or infinite after {settings.epochs} epochs; "
            f"use a lower lr than {settings.lr:g}"
        )


@contextmanager
def _deterministic(like: Tensor) -> Iterator[None]:
    """Float32 and deterministic kernels, whatever the caller has set."""
    cudnn = torch.backends.cudnn
    exact = cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False)
    with torch.autocast(like.device.type, enabled=False), exact:
        yield


# --- checks of inputs


def as_images(images: Tensor) -> Tensor:
    """Images (n, channels, height, width) in [0, 1], or values (n, k), in float32; anything else is an error."""
    if images.ndim not in (2, 4) or not images.numel():
        raise ConfigurationError(
            f"images have the shape {tuple(images.shape)}; give 1 or more of (n, channels, height, width) in [0, 1], "
            f"or values (n, k)"
        )
    _finite("images", images)
    images = images.detach().float()
    if images.ndim == 2:
        return images
    low, high = (float(value) for value in images.aminmax())
    if low < -_TOLERANCE or high > 1 + _TOLERANCE:
        raise ConfigurationError(f"pixels of images are from {low:g} to {high:g}; scale them to [0, 1]")
    return images.clamp(0, 1)


def same_samples(codes: Tensor, images: Tensor) -> None:
    """Raise an error if there are not as many codes as images."""
    if len(codes) != len(images):
        raise ConfigurationError(f"{len(codes)} codes are not of {len(images)} images; give both of the same samples")


def _flat(codes: Tensor) -> Tensor:
    """Codes as (n, width)."""
    if not codes.ndim or not codes.numel():
        raise ConfigurationError(f"codes have the shape {tuple(codes.shape)}; give 1 or more of (n, ...)")
    _finite("codes", codes)
    return codes.detach().reshape(len(codes), -1)


def _finite(what: str, values: Tensor) -> None:
    bad = int((~values.reshape(len(values), -1).isfinite().all(1)).sum())
    if bad:
        raise TrainingError(
            f"{bad} of {len(values)} {what} are NaN or infinite; check the training of the model that computed them"
        )


def _moments(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the codes, (width,) each, in float64; infinite deviation for constant codes."""
    wide = codes.double()
    return wide.mean(0), wide.std(0, correction=0).masked_fill(codes.amin(0) == codes.amax(0), math.inf)


def _standardized(codes: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    parts = torch.split(codes, _CHUNK)  # float64 needs much memory
    return torch.cat([((part - mean) / deviation).clamp(-_CLAMP, _CLAMP).float() for part in parts])


def _peak(images: Tensor) -> float:
    """The range of values: 1 for images."""
    return 1.0 if images.ndim == 4 else float(images.max() - images.min()) or 1.0


# --- networks


def _network(width: int, images: Tensor, seed: int) -> nn.Sequential:
    """A decoder with initial weights from the seed, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of("decoder", seed))  # torch.manual_seed would seed GPUs as well
        network = _of_images(width, images) if images.ndim == 4 else _of_values(width, images)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a sixth faster on a CPU
    return network.to(images.device)


def _of_images(width: int, images: Tensor) -> nn.Sequential:
    """A linear layer to a small map, which two upsampling convolutions enlarge fourfold."""
    channels, height, across = images.shape[1:]
    small = _CHANNELS[0], math.ceil(height / 4), math.ceil(across / 4)
    return nn.Sequential(
        nn.Linear(width, math.prod(small)),
        nn.ReLU(),
        nn.Unflatten(1, small),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(*_CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(_CHANNELS[1], channels, 3, padding=1),
        nn.Sigmoid(),
        _Cropped(height, across),
    )


def _of_values(width: int, values: Tensor) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, values.shape[1]), _Scaled(values))


class _Cropped(nn.Module):
    """Crops images to the first `height` rows and `width` columns."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width)."""
        return x[..., : self.height, : self.width]


class _Scaled(nn.Module):
    """Scales standardized values to the mean and deviation of the training values."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", values.mean(0))
        self.register_buffer("deviation", values.std(0, correction=0))

    def forward(self, x: Tensor) -> Tensor:
        """Values (n, k)."""
        return x * self.deviation + self.mean
