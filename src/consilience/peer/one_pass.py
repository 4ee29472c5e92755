"""One pass over a caller's own data loader: features, logits and targets of every sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.errors import ConfigurationError
from consilience.models import SplitModel

Loader = Iterable[Any]
"""Batches of (inputs, targets), as a DataLoader yields them."""


def one_pass(model: SplitModel, loader: Loader, classes: int, represent: bool) -> tuple[dict[str, Tensor], int]:
    """Features, logits and targets of every sample, in evaluation mode, and how many samples there are.

    represent: whether an exchange needs them; without it, samples are only counted. The model's mode is restored.
    """
    before = [(module, module.training) for module in model.modules()]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    samples = 0
    model.eval()
    try:
        for batch in loader:
            _refuse_other_batch(batch)
            samples += len(batch[1])
            if represent:
                features = _features(model, batch[0])  # (rows, width)
                targets = torch.as_tensor(batch[1]).to(features.device)
                parts.append((features.float(), model.classifier(features).float(), targets))
    finally:
        for module, training in before:
            module.training = training
    if not samples:
        raise ConfigurationError("the loader has no batches: there is nothing to upload; give it your training data")
    if not parts:
        return {}, samples
    features, logits, targets = (torch.cat(several) for several in zip(*parts, strict=True))
    return {"features": features, "logits": logits, "targets": _classes(targets, classes)}, samples


def count_classes(loader: Loader, classes: int) -> Tensor:
    """How many samples of each class a loader has, (classes,)."""
    counts = torch.zeros(classes)
    for batch in loader:
        _refuse_other_batch(batch)
        counts += torch.bincount(_classes(torch.as_tensor(batch[1]), classes).cpu(), minlength=classes)
    if not counts.sum():
        raise ConfigurationError("the loader has no batches: there is nothing to count; give it your training data")
    return counts


def _refuse_other_batch(batch: Any) -> None:
    if not isinstance(batch, list | tuple) or len(batch) < 2:
        raise ConfigurationError(
            f"the loader yields {type(batch).__name__}; it must yield batches of (inputs, targets)"
        )


def _features(model: SplitModel, inputs: Any) -> Tensor:
    """Features of inputs, which are converted to the model's device and floating-point precision."""
    inputs = torch.as_tensor(inputs) if isinstance(inputs, np.ndarray) else inputs
    if isinstance(inputs, Tensor):
        own = next(p for p in model.parameters() if p.is_floating_point())
        inputs = inputs.to(own.device, own.dtype if inputs.is_floating_point() else inputs.dtype)
    try:
        features: Tensor = model.features(inputs)
    except RuntimeError as error:
        if isinstance(inputs, Tensor) and not inputs.is_floating_point():
            raise ConfigurationError(
                f"your model cannot take the loader's inputs of {inputs.dtype}: {error}; let it yield what you train on"
            ) from error
        raise
    return features


def _classes(targets: Tensor, classes: int) -> Tensor:
    """Targets as int64; anything but classes is refused."""
    if targets.ndim != 1 or targets.is_floating_point() or bool(((targets < 0) | (targets >= classes)).any()):
        raise ConfigurationError(
            f"the loader's targets are {targets.dtype} of the shape {tuple(targets.shape)}, from {targets.min()} to "
            f"{targets.max()}; this federation takes integers from 0 to {classes - 1}, one per sample"
        )
    return targets.long()
