"""One pass over a caller's own data loader: features, logits and targets of every sample."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.peer.batches import PADDING, Loader, ModelCall, Unpack, batches_of, read_batch
from consilience.peer.called_model import CalledModel
from consilience.peer.loop_targets import check_targets, refuse_raw_numbers
from consilience.task import Task

_TARGETS = "the loader's targets"


def one_pass(model: CalledModel, loader: Loader, task: Task, represent: bool) -> tuple[dict[str, Tensor], int]:
    """Features, logits and targets of every sample, in evaluation mode, and how many samples there are.

    represent: whether an exchange needs them; without it, samples are only counted. The model's mode is restored.
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    samples = 0
    with _evaluating(model.module):
        for batch in batches_of(loader):
            call, targets = read_batch(batch, model.unpack)
            samples += len(targets)
            if represent:
                features, logits = run_call(model, call)
                _refuse_other_rows(model, features, len(targets))
                parts.append((features.float(), logits.float(), targets.to(features.device)))
    if not samples:
        raise ConfigurationError("the loader has no batches: there is nothing to upload; give it your training data")
    if not parts:
        return {}, samples
    features, logits, targets = (torch.cat(several) for several in zip(*parts, strict=True))
    targets = check_targets(task, targets, _TARGETS)
    refuse_raw_numbers(task, targets, _TARGETS)
    return {"features": features, "logits": logits, "targets": targets}, samples


def count_classes(loader: Loader, task: Task, unpack: Unpack | None = None) -> Tensor:
    """How many samples of each class a loader has, (classes,)."""
    counts = torch.zeros(task.classes)
    for batch in batches_of(loader):
        targets = check_targets(task, read_batch(batch, unpack)[1], _TARGETS)
        counts += torch.bincount(targets.cpu(), minlength=task.classes)
    if not counts.sum():
        raise ConfigurationError("the loader has no batches: there is nothing to count; give it your training data")
    return counts


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode in this block; afterwards every module has the mode of before."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def run_call(model: CalledModel, call: ModelCall) -> tuple[Tensor, Tensor]:
    """What the classifier reads and returns in one forward pass; refused unless it is called once."""
    seen: list[tuple[Tensor, Tensor]] = []

    def record(_: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any], logits: Tensor) -> None:
        seen.append((positional[0] if positional else named["input"], logits))

    handle = model.classifier.register_forward_hook(record, with_kwargs=True)
    try:
        _run(model.module, call)
    finally:
        handle.remove()
    if len(seen) != 1:
        how = "never called" if not seen else f"called {len(seen)} times"
        raise ConfigurationError(
            f"{_named(model)} was {how} in one forward pass, and must be called once; let the forward pass call it as "
            f"a module, once for a batch, or name the linear layer that computes the logits, "
            f"consilience.join(..., layer=...)"
        )
    return seen[0]


def _run(model: nn.Module, call: ModelCall) -> None:
    """Run a call; where the model cannot take the inputs, the error says what to change."""
    try:
        call.run(model)
    except TypeError as error:
        if wrong := _unbound(model, *call.positional, **call.named):
            whole = "; a model that takes one mapping needs it in a tuple, unpack=lambda batch: ((batch[0],), batch[1])"
            ragged = f"; if these are sequences of different lengths, {PADDING}"
            hint = whole if call.named and not _unbound(model, call.named) else ragged if call.lengths_differ else ""
            raise ConfigurationError(
                f"{type(model).__name__} cannot be called with what the loader yields, {call} and targets: {wrong}; "
                f"let it yield what you train on, or join with unpack=..., a function that makes (inputs, targets) of "
                f"a batch{hint}"
            ) from error
        raise
    except RuntimeError as error:
        if (inputs := call.integer_inputs) is not None:
            raise ConfigurationError(
                f"your model cannot take the loader's inputs of {inputs.dtype}: {error}; let it yield what you train on"
            ) from error
        raise


def _unbound(model: nn.Module, *positional: Any, **named: Any) -> str:
    """Why a model does not take these arguments; nothing where it does."""
    try:
        inspect.signature(model.forward).bind(*positional, **named)
    except TypeError as error:
        return str(error)
    return ""


def _refuse_other_rows(model: CalledModel, features: Tensor, samples: int) -> None:
    width = model.classifier.in_features
    if features.shape != (samples, width):
        raise ConfigurationError(
            f"{_named(model)} read inputs of the shape {tuple(features.shape)} for {samples} targets, and must read "
            f"({samples}, {width}); flatten, pool or select its input first, such as x.flatten(1)"
        )


def _named(model: CalledModel) -> str:
    return f"layer {model.layer!r} of {type(model.module).__name__}"
