"""Targets of a training loop of one's own, checked against the federation's kind of task, as exchanges take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from consilience.errors import ConfigurationError
from consilience.task import Target, Task, TaskKind

_FAR = 100.0
"""Standard deviations from the mean: numbers that are further away have not been standardized."""
_OFF, _FITS, _ENOUGH = 3.0, 1.5, 10
"""So many samples are in a unit of their owner's where they are this far from 0, and so near after standardizing: in
root mean squares. Fewer samples, as in a mini-batch, may be far from the mean by chance."""
_UNPACK = (
    "if the targets are not the last item of your batches, join with unpack=..., which makes (inputs, targets) of a "
    "batch"
)


def as_targets(call: str, targets: Any) -> Tensor:
    """The targets that a call was given, as a tensor: a list or an array is one too."""
    try:
        return torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"{call} was given targets of the type {type(targets).__name__}, and takes a tensor with one target per row"
        ) from error


def check_targets(task: Task, targets: Tensor, where: str, read: bool = True) -> Tensor:
    """The targets as exchanges take them: classes, 0 or 1 for each label, or standardized numbers.

    where: what they are, such as "the loader's targets". What does not fit the kind of task is refused. read: whether
    classes are compared with the federation's; their shape and type always are.
    """
    said = f"{where} are {targets.dtype} of the shape {tuple(targets.shape)}"
    if task.target.kind == "single-label" and not read:
        return _as_classes(task, targets, said)
    return _CHECKS[task.target.kind](task, targets, said)


def refuse_raw_numbers(task: Task, targets: Tensor, where: str) -> None:
    """Refuse all targets of a member's regression where they look as if nobody had standardized them."""
    target = task.target
    if target.kind != "regression" or len(targets) < _ENOUGH:
        return
    if _root_mean_square(targets) > _OFF and _root_mean_square((targets - target.mean) / target.std) < _FITS:
        raise ConfigurationError(
            f"{where} are {targets.mean():.4g} on average, as numbers in your own unit: this federation takes "
            f"standardized numbers, whose average is near 0; {_standardize(target)}"
        )


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _standardize(target: Target) -> str:
    return (
        f"give (targets - {target.mean:.6g}) / {target.std:.6g}, which are target.mean and target.std of peer.charter"
    )


def _classes(task: Task, targets: Tensor, said: str) -> Tensor:
    classes = _as_classes(task, targets, said)
    if bool(((classes < 0) | (classes >= task.classes)).any()):
        raise ConfigurationError(
            f"{said}, from {classes.min()} to {classes.max()}; this federation takes integers from 0 to "
            f"{task.classes - 1}, one per sample; {_UNPACK}"
        )
    return classes


def _as_classes(task: Task, targets: Tensor, said: str) -> Tensor:
    """Integers, one per sample, whatever their values."""
    if targets.ndim != 1 or targets.is_floating_point():
        one_hot = targets.ndim == 2 and targets.shape[1] == task.classes
        way = "targets.argmax(1) of one-hot rows" if one_hot else "targets.flatten().long() of whole numbers"
        raise ConfigurationError(
            f"{said}; this federation takes integers from 0 to {task.classes - 1}, one per sample, such as {way}; "
            f"{_UNPACK}"
        )
    return targets.long()


def _label_sets(task: Task, targets: Tensor, said: str) -> Tensor:
    if targets.ndim != 2 or targets.shape[1] != task.classes or bool(((targets != 0) & (targets != 1)).any()):
        raise ConfigurationError(
            f"{said}; this federation is for multi-label and takes 0 or 1 for each of {task.classes} labels, "
            f"(rows, {task.classes}); {_UNPACK}"
        )
    return targets.long()


def _numbers(task: Task, targets: Tensor, said: str) -> Tensor:
    values = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if values.ndim != 1 or not bool(torch.isfinite(values).all()):
        raise ConfigurationError(
            f"{said}; this federation is for regression and takes one finite number per sample, (rows,); {_UNPACK}"
        )
    if bool((values.abs() > _FAR).any()):
        raise ConfigurationError(
            f"{said}, up to {values.abs().max():.4g}: this federation takes standardized numbers; "
            f"{_standardize(task.target)}"
        )
    return values.float()


FORMS: dict[TaskKind, str] = {
    "single-label": "(rows,) of integers",
    "multi-label": "(rows, {classes}) of 0 and 1",
    "regression": "(rows,) of standardized numbers",
}
"""How the targets of a mini-batch look, for messages."""
_CHECKS: dict[TaskKind, Callable[[Task, Tensor, str], Tensor]] = {
    "single-label": _classes,
    "multi-label": _label_sets,
    "regression": _numbers,
}
