"""What a loader yields, as a call of the model and its targets: the one place that decides how batches are read.

| batch | call of the model |
|---|---|
| `(inputs, targets)` | `model(inputs)` |
| `(first, second, targets)` | `model(first, second)` |
| `({"ids": ..., "mask": ...}, targets)` | `model(ids=..., mask=...)` |
| `{"ids": ..., "mask": ..., "labels": ...}` | `model(ids=..., mask=...)` |

Any other batch needs a function of its owner's that makes `(inputs, targets)` of it: `join(..., unpack=...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError

Loader = Iterable[Any]
"""Batches, as a DataLoader yields them."""
Unpack = Callable[[Any], tuple[Any, Any]]
"""Makes (inputs, targets) of a batch."""
LABELS = ("labels", "label", "targets", "target", "y")
"""Keys under which a batch that is a mapping may have its targets."""
_NOT_STACKED = (
    "expects each tensor to be equal size",
    "each element in list of batch should be of equal size",
    "expected sequence of length",
    "all input arrays must have the same shape",
)
"""What torch, a Hugging Face data_collator and NumPy say where samples of a batch have different shapes."""
PADDING = (
    "pad them to one length per batch: DataLoader(collate_fn=...) with torch.nn.utils.rnn.pad_sequence, a Hugging Face "
    "trainer's data_collator=DataCollatorWithPadding(tokenizer), or consilience.pad_sequences before"
)
"""What to do with sequences of different lengths."""
_WAY_OUT = "for other batches, join with unpack=..., a function that makes (inputs, targets) of a batch"


@dataclass(frozen=True)
class ModelCall:
    """The arguments with which a batch calls a model."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any] = field(default_factory=dict)

    def run(self, model: nn.Module) -> None:
        """Call a model, with the inputs on its device, and floating-point inputs in its precision."""
        like = next((p for p in model.parameters() if p.is_floating_point()), None)
        named = {name: _like(like, each) for name, each in self.named.items()}
        model(*(_like(like, each) for each in self.positional), **named)

    @property
    def integer_inputs(self) -> Tensor | None:
        """The first of the inputs that has no floating-point numbers, if there is one."""
        tensors = (_as_tensor(each) for each in (*self.positional, *self.named.values()))
        return next((t for t in tensors if isinstance(t, Tensor) and not t.is_floating_point()), None)

    @property
    def lengths_differ(self) -> bool:
        """Whether there are several unnamed inputs that do not have one length, as a list of sequences has."""
        sized = (each for each in self.positional if isinstance(each, Sized) and getattr(each, "ndim", True))
        return len({len(each) for each in sized}) > 1

    def __str__(self) -> str:
        named = [f"{name}=..." for name in self.named]
        return f"model({', '.join(['...'] * len(self.positional) + named)})"


def read_batch(batch: Any, unpack: Unpack | None = None) -> tuple[ModelCall, Tensor]:
    """The call and the targets of a batch; one without targets is refused. unpack: how its owner reads it."""
    if unpack is not None:
        batch = unpack(batch)
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise ConfigurationError(f"unpack returned {_describe(batch)}; it must return (inputs, targets)")
    elif isinstance(batch, Mapping):
        return _read_mapping(batch)
    elif not isinstance(batch, list | tuple) or len(batch) < 2:
        raise ConfigurationError(
            f"the loader yields {_describe(batch)}, without targets; it must yield batches of (inputs, targets), or "
            f"mappings with the targets under {LABELS[0]!r}; {_WAY_OUT}"
        )
    call = read_inputs(batch[0]) if len(batch) == 2 else ModelCall(tuple(batch[:-1]))
    return call, _targets(batch[-1])


def batches_of(loader: Loader) -> Iterator[Any]:
    """What a loader yields, one after the other; what is no loader, or cannot stack its samples, is refused."""
    try:
        batches = iter(loader)
    except TypeError as error:
        raise ConfigurationError(
            f"the loader is {_describe(loader)}, which yields no batches; give the DataLoader that you train on, or a "
            f"list of batches of (inputs, targets)"
        ) from error
    while True:
        try:
            with stacked_samples():
                batch = next(batches)
        except StopIteration:
            return
        yield batch


@contextmanager
def stacked_samples() -> Iterator[None]:
    """In this block, a loader that cannot stack its samples is refused with how to pad them."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not any(said in str(error) for said in _NOT_STACKED):
            raise
        raise ConfigurationError(
            f"the loader cannot stack samples of different shapes, such as sequences of different lengths; {PADDING}"
        ) from error


def read_inputs(inputs: Any) -> ModelCall:
    """The call of the inputs of a batch: a mapping is named arguments, a list or tuple several positional ones."""
    if isinstance(inputs, Mapping):
        return ModelCall((), dict(inputs))
    return ModelCall(tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,))


def _read_mapping(batch: Mapping[Any, Any]) -> tuple[ModelCall, Tensor]:
    found = [key for key in LABELS if key in batch]
    if len(found) != 1:
        which = f"more than one key for targets, {', '.join(found)}" if found else "no key for targets"
        raise ConfigurationError(
            f"the loader yields a mapping of {', '.join(map(str, batch))}, which has {which}; name exactly one of them "
            f"{' or '.join(LABELS)}; {_WAY_OUT}"
        )
    named = {key: value for key, value in batch.items() if key != found[0]}
    return ModelCall((), named), _targets(batch[found[0]])


def _targets(targets: Any) -> Tensor:
    try:
        found = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"the loader's targets, the last item of its batches, are {_describe(targets)}, and no numbers; {_WAY_OUT}"
        ) from error
    if found.ndim == 0:
        raise ConfigurationError(
            f"the loader's targets, the last item of its batches, are one number and not one for each sample; "
            f"{_WAY_OUT}"
        )
    return found


def _as_tensor(value: Any) -> Any:
    """An array as a tensor; anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        raise ConfigurationError(
            f"the loader's inputs are an array of objects, such as sequences of different lengths; {PADDING}"
        )
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


def _like(own: Tensor | None, value: Any) -> Any:
    """Inputs on the device of a model's parameter, floating-point ones in its precision; what is no tensor as it is."""
    value = _as_tensor(value)
    if isinstance(value, Mapping):
        return {key: _like(own, each) for key, each in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_like(own, each) for each in value)
    if own is None or not isinstance(value, Tensor):
        return value
    return value.to(own.device, own.dtype if value.is_floating_point() else value.dtype)


def _describe(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
