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

from collections.abc import Callable, Iterable, Mapping
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
_WAY_OUT = "for other batches, join with unpack=..., a function that makes (inputs, targets) of a batch"


@dataclass(frozen=True)
class LoaderBatch:
    """One batch: the arguments for the model, and the targets."""

    positional: tuple[Any, ...]
    targets: Tensor
    named: Mapping[str, Any] = field(default_factory=dict)

    def call(self, model: nn.Module) -> None:
        """Call the model with the inputs, on its device and with floating-point inputs in its precision."""
        like = next((p for p in model.parameters() if p.is_floating_point()), None)
        positional = [_like(like, each) for each in self.positional]
        named = {name: _like(like, each) for name, each in self.named.items()}
        model(*positional, **named)

    @property
    def integer_inputs(self) -> Tensor | None:
        """The first of the inputs that has no floating-point numbers, if there is one."""
        tensors = (as_tensor(each) for each in (*self.positional, *self.named.values()))
        return next((t for t in tensors if isinstance(t, Tensor) and not t.is_floating_point()), None)


def read_batch(batch: Any, unpack: Unpack | None = None) -> LoaderBatch:
    """The inputs and the targets of a batch; one without targets is refused. unpack: how its owner reads it."""
    if unpack is not None:
        unpacked = unpack(batch)
        if not isinstance(unpacked, list | tuple) or len(unpacked) != 2:
            raise ConfigurationError(f"unpack returned {_describe(unpacked)}; it must return (inputs, targets)")
        return _with_inputs(unpacked[0], unpacked[1])
    if isinstance(batch, Mapping):
        return _read_mapping(batch)
    if not isinstance(batch, list | tuple) or len(batch) < 2:
        raise ConfigurationError(
            f"the loader yields {_describe(batch)}; it must yield batches of (inputs, targets), or mappings with the "
            f"targets under {LABELS[0]!r}; {_WAY_OUT}"
        )
    if len(batch) == 2:
        return _with_inputs(batch[0], batch[1])
    return LoaderBatch(tuple(batch[:-1]), _targets(batch[-1]))


def _read_mapping(batch: Mapping[Any, Any]) -> LoaderBatch:
    found = [key for key in LABELS if key in batch]
    if len(found) != 1:
        many = f"several keys for targets, {', '.join(found)}" if found else "no labels"
        raise ConfigurationError(
            f"the loader yields a mapping of {', '.join(map(str, batch))}, which has {many}; one of "
            f"{', '.join(LABELS)} must be there; {_WAY_OUT}"
        )
    named = {key: value for key, value in batch.items() if key != found[0]}
    return LoaderBatch((), _targets(batch[found[0]]), named)


def _with_inputs(inputs: Any, targets: Any) -> LoaderBatch:
    if isinstance(inputs, Mapping):
        return LoaderBatch((), _targets(targets), dict(inputs))
    if isinstance(inputs, list | tuple):
        return LoaderBatch(tuple(inputs), _targets(targets))
    return LoaderBatch((inputs,), _targets(targets))


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


def as_tensor(value: Any) -> Any:
    """An array as a tensor; anything else as it is."""
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


def _like(own: Tensor | None, value: Any) -> Any:
    """Inputs on the device of a model's parameter, floating-point ones in its precision; what is no tensor as it is."""
    value = as_tensor(value)
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
