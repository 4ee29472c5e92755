"""Probes: how good features are, measured by the accuracy of a very simple classifier on them.

Both probes take frozen features on any device and predict the class of each test sample. All-zero features are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from consilience.errors import ConfigurationError, TrainingError
from consilience.randomness import uniform
from consilience.validation import check_integer, check_number

_MAX_SIMILARITIES = 2**26  # in memory at once


@dataclass(frozen=True)
class LinearProbeSettings:
    """How a linear probe is trained: SGD, with the learning rate divided by 10 after each of the epochs in `drops`."""

    epochs: int = 60
    batch_size: int = 256
    lr: float = 3e-2
    momentum: float = 0.9
    weight_decay: float = 0.0
    drops: tuple[int, ...] = (30, 50)

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs)
        check_integer("batch_size", self.batch_size)
        for name in ("lr", "momentum", "weight_decay"):
            check_number(name, getattr(self, name))


_DEFAULTS = LinearProbeSettings()


@torch.no_grad()
def linear_probe(
    features: Tensor,
    targets: Tensor,
    test_features: Tensor,
    classes: int,
    *,
    seed: int,
    settings: LinearProbeSettings = _DEFAULTS,
) -> Tensor:
    """The predicted class of each test sample, (tests,), of a linear classifier trained on frozen features with SGD.

    Its weights start at zero. seed: of the order of samples.

        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> linear_probe(features, torch.tensor([0, 1]), torch.tensor([[3.0, 1.0], [1.0, 3.0]]), 2, seed=0).tolist()
        [0, 1]
    """
    _check(features, targets, test_features, classes)
    with torch.autocast(features.device.type, enabled=False):  # float32, whatever the model's precision
        samples = F.pad(features.float(), (0, 1), value=1.0)  # (n, width + 1): the last weight is the bias
        truth = F.one_hot(targets.long(), classes).float()  # (n, classes)
        weights = samples.new_zeros(samples.shape[1], classes)  # (width + 1, classes)
        velocity = torch.zeros_like(weights)
        index = torch.arange(len(samples), device=samples.device)
        x, y = (
            torch.empty_like(samples),
            torch.empty_like(truth),
        )  # in the order of the epoch, so that batches are views
        for epoch in range(settings.epochs):
            order = uniform("probe", seed, epoch, index).argsort()
            torch.index_select(samples, 0, order, out=x)
            torch.index_select(truth, 0, order, out=y)
            lr = settings.lr / 10 ** sum(epoch >= drop for drop in settings.drops)
            batches = (torch.split(values, settings.batch_size) for values in (x, y))
            for batch, one_hot in zip(*batches, strict=True):
                _step(weights, velocity, (batch, one_hot), lr, settings)
        if not weights.isfinite().all():
            raise TrainingError(
                f"weights of the linear probe are NaN or infinite after {settings.epochs} epochs; "
                f"use a lower lr than {settings.lr:g}, or scale the features down"
            )
        return torch.addmm(weights[-1], test_features.float(), weights[:-1]).argmax(1)


def _step(
    weights: Tensor, velocity: Tensor, batch: tuple[Tensor, Tensor], lr: float, settings: LinearProbeSettings
) -> None:
    """One step of SGD on the cross-entropy with its closed-form gradient: few operations, since there are many steps.

    batch: features (batch, width + 1) and one-hot targets (batch, classes).
    """
    x, one_hot = batch
    error = (x @ weights).softmax(1).sub_(one_hot)  # (batch, classes)
    velocity.addmm_(x.T, error, beta=settings.momentum, alpha=1 / len(x))
    if settings.weight_decay:
        velocity.add_(weights, alpha=settings.weight_decay)
    weights.sub_(velocity, alpha=lr)


@torch.no_grad()
def knn_probe(
    features: Tensor,
    targets: Tensor,
    test_features: Tensor,
    classes: int,
    *,
    neighbors: int = 200,
    temperature: float = 0.1,
) -> Tensor:
    """The predicted class of each test sample, (tests,), by a weighted vote of its nearest training samples.

    Each of the `neighbors`, or of all samples if there are fewer, votes with exp(cosine similarity / temperature).

        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> knn_probe(features, torch.tensor([0, 1]), torch.tensor([[3.0, 1.0], [1.0, 3.0]]), 2).tolist()
        [0, 1]
    """
    check_integer("neighbors", neighbors)
    check_number("temperature", temperature)
    if not temperature:
        raise ConfigurationError("temperature is 0; it must be above 0. With 1 neighbor it has no effect")
    _check(features, targets, test_features, classes)
    nearest, block = min(neighbors, len(features)), max(1, _MAX_SIMILARITIES // len(features))
    with torch.autocast(features.device.type, enabled=False):
        known = F.normalize(features.float())  # (n, width)
        truth = F.one_hot(targets.long(), classes).float()  # (n, classes)
        parts = []
        for tests in torch.split(F.normalize(test_features.float()), block):
            similar = tests @ known.T  # (block, n)
            top, who = similar.topk(nearest)  # (block, nearest), the most similar first
            votes = ((top - top[:, :1]) / temperature).exp()  # relative to the largest, so that none overflows
            # A dense product: a sum by class with scatter_add has no fixed order on a GPU.
            parts.append((similar.zero_().scatter_(1, who, votes) @ truth).argmax(1))
        return torch.cat(parts)


def _check(features: Tensor, targets: Tensor, test_features: Tensor, classes: int) -> None:
    """Raise an error for inputs of the wrong shape, and for non-finite features."""
    check_integer("classes", classes)
    shapes = tuple(features.shape), tuple(targets.shape), tuple(test_features.shape)
    match = features.ndim == test_features.ndim == 2 and features.shape[1] == test_features.shape[1]
    if not match or targets.shape != features.shape[:1] or not len(features):
        raise ConfigurationError(
            f"a probe takes features (samples, width) of 1 or more samples, targets (samples,) and test features "
            f"(tests, width), got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    low, high = (int(value) for value in targets.aminmax())
    if low < 0 or high >= classes:
        raise ConfigurationError(
            f"a probe's targets are whole numbers from 0 to {classes - 1}, one below the number of classes, "
            f"got {low} to {high}"
        )
    for what, values in (("features", features), ("test features", test_features)):
        bad = int((~values.isfinite().all(1)).sum())
        if bad:
            raise TrainingError(
                f"{bad} of {len(values)} {what} are NaN or infinite, so a probe cannot be trained on them; "
                f"check the training of the model, and use a lower learning rate"
            )
