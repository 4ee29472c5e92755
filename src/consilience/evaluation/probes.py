"""Probes: how good features are, told by how well something very simple reads classes from them.

Both take features as they are, on any device, and predict the class of each test sample. All-zero features are allowed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from consilience.errors import ConfigurationError, TrainingError
from consilience.randomness import uniform
from consilience.validation import check_integer, check_number

_AT_ONCE = 2**26  # similarities in memory


@torch.no_grad()
def linear_probe(
    features: Tensor,
    targets: Tensor,
    test_features: Tensor,
    classes: int,
    *,
    seed: int,
    epochs: int = 60,
    batch_size: int = 256,
    lr: float = 3e-2,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    drops: tuple[int, ...] = (30, 50),
) -> Tensor:
    """The class of each test sample, (tests,), by a linear classifier trained on frozen features with SGD.

    It starts at zero, and its rate is divided by 10 after each of the epochs in `drops`. seed: of the samples' order.

        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> linear_probe(features, torch.tensor([0, 1]), torch.tensor([[3.0, 1.0], [1.0, 3.0]]), 2, seed=0).tolist()
        [0, 1]
    """
    check_integer("epochs", epochs)
    check_integer("batch_size", batch_size)
    for what, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
        check_number(what, value)
    _check(features, targets, test_features, classes)
    with torch.autocast(features.device.type, enabled=False):  # float32, whatever the model is run in
        samples = F.pad(features.float(), (0, 1), value=1.0)  # (n, width + 1): the last weight is the bias
        truth = F.one_hot(targets.long(), classes).float()  # (n, classes)
        weights = samples.new_zeros(samples.shape[1], classes)  # (width + 1, classes)
        velocity = torch.zeros_like(weights)
        index = torch.arange(len(samples), device=samples.device)
        x, y = torch.empty_like(samples), torch.empty_like(truth)  # in the order of an epoch: batches are then views
        for epoch in range(epochs):
            order = uniform("probe", seed, epoch, index).argsort()
            torch.index_select(samples, 0, order, out=x)
            torch.index_select(truth, 0, order, out=y)
            rate = lr / 10 ** sum(epoch >= drop for drop in drops)
            for batch, wanted in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
                _step(weights, velocity, batch, wanted, rate, momentum, weight_decay)
        if not weights.isfinite().all():
            raise TrainingError(
                f"the linear probe's weights are no numbers after {epochs} epochs; "
                f"take a lower lr than {lr:g}, or features that are not as large"
            )
        return torch.addmm(weights[-1], test_features.float(), weights[:-1]).argmax(1)


def _step(
    weights: Tensor, velocity: Tensor, x: Tensor, wanted: Tensor, rate: float, momentum: float, weight_decay: float
) -> None:
    """One step of SGD on the cross-entropy, whose gradient is known: five operations, for steps are many and small."""
    wrong = (x @ weights).softmax(1).sub_(wanted)  # (batch, classes)
    velocity.addmm_(x.T, wrong, beta=momentum, alpha=1 / len(x))
    if weight_decay:
        velocity.add_(weights, alpha=weight_decay)
    weights.sub_(velocity, alpha=rate)


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
    """The class of each test sample, (tests,), by vote of the training samples that are most similar to it.

    Each of so many neighbors, or all where there are fewer, votes with exp(cosine similarity / temperature).

        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> knn_probe(features, torch.tensor([0, 1]), torch.tensor([[3.0, 1.0], [1.0, 3.0]]), 2).tolist()
        [0, 1]
    """
    check_integer("neighbors", neighbors)
    check_number("temperature", temperature)
    if not temperature:
        raise ConfigurationError("temperature is 0; it must be above 0, and with 1 neighbor nothing depends on it")
    _check(features, targets, test_features, classes)
    nearest, block = min(neighbors, len(features)), max(1, _AT_ONCE // len(features))
    with torch.autocast(features.device.type, enabled=False):
        known = F.normalize(features.float())  # (n, width)
        truth = F.one_hot(targets.long(), classes).float()  # (n, classes)
        parts = []
        for asked in torch.split(F.normalize(test_features.float()), block):
            similar = asked @ known.T  # (block, n)
            top, who = similar.topk(nearest)  # (block, nearest), the most similar first
            votes = ((top - top[:, :1]) / temperature).exp()  # relative to the first, so that none is too large
            # Spread out and multiplied: adding votes up by their class has no fixed order on a GPU.
            parts.append((similar.zero_().scatter_(1, who, votes) @ truth).argmax(1))
        return torch.cat(parts)


def _check(features: Tensor, targets: Tensor, test_features: Tensor, classes: int) -> None:
    """Refuse what no probe can read."""
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
                f"{bad} of {len(values)} {what} are no finite numbers, so no probe can tell how good they are; "
                f"look at the training that made them, and take a lower learning rate"
            )
