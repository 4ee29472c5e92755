"""What a caller's classifier read and returned in its newest training forward pass, so that nobody has to pass it on.

A hook on the linear layer records the pass. Passes without gradients, such as validation, are not recorded. A record
serves one `loss` and one `penalty`, in either order; then, or at the next forward pass, it is dropped, and with it the
graph that it keeps alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError

_classifies_others = ContextVar("classifies_others", default=False)
"""Whether a penalty applies the classifier to others' features, which is no forward pass of the caller's."""


@contextmanager
def not_recorded() -> Iterator[None]:
    """Calls of a classifier in this block are no forward pass of the caller's."""
    before = _classifies_others.set(True)
    try:
        yield
    finally:
        _classifies_others.reset(before)


class ForwardRecord:
    """Records the newest forward pass of a linear layer with gradients. name: the layer's, for messages."""

    def __init__(self, layer: nn.Linear, name: str) -> None:
        self.name = name
        self._seen: tuple[Tensor, Tensor] | None = None
        self._used: set[str] = set()
        self._calls = 0  # since the record was used
        self._handle = layer.register_forward_hook(_Hook(self), with_kwargs=True)

    def record(self, features: Tensor, logits: Tensor) -> None:
        """Hold a forward pass in the place of the one before."""
        self._calls = 1 if self._used else self._calls + 1
        self._seen, self._used = (features, logits), set()

    def use(self, call: str, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of the newest forward pass, for these targets; call: `loss` or `penalty`."""
        if self._seen is None or call in self._used:
            raise ConfigurationError(self._nothing(call))
        features, logits = self._seen
        if features.ndim != 2 or len(features) != len(targets):
            raise ConfigurationError(self._other_rows(call, tuple(features.shape), tuple(targets.shape)))
        self._used.add(call)
        if self._used >= {"loss", "penalty"}:
            self._seen = None
        return features, logits

    def drop(self) -> None:
        """Forget the newest forward pass, and the graph that it keeps alive."""
        self._seen, self._used, self._calls = None, set(), 0

    def close(self) -> None:
        """Remove the hook."""
        self.drop()
        self._handle.remove()

    def _nothing(self, call: str) -> str:
        if self._used:
            return (
                f"peer.{call}(targets) was called twice after one forward pass of your model; call the model before "
                f"each {call}, or give features and logits by hand, {_BY_HAND[call]}"
            )
        return (
            f"peer.{call}(targets) uses your model's last forward pass with gradients, and there was none since the "
            f"last {call}: the layer {self.name!r} was not called. Call the model before {call}, outside of "
            f"torch.no_grad(); if another layer computes the logits, name it, consilience.join(..., layer=...)"
        )

    def _other_rows(self, call: str, features: tuple[int, ...], targets: tuple[int, ...]) -> str:
        if len(features) != 2:
            return (
                f"the layer {self.name!r} read features of the shape {features} for targets of the shape {targets}; "
                f"{call} takes (rows, width), one row per target. If your model applies it to each position of a "
                f"sequence, select or pool positions before the layer, or give rows by hand, {_BY_HAND[call]}"
            )
        often = f", the last of {self._calls} calls," if self._calls > 1 else ""
        return (
            f"the layer {self.name!r} read {features[0]} rows in your model's last forward pass{often} and {call} was "
            f"given {targets[0] if targets else 'one'} targets. With several forward passes per batch, call {call} "
            f"after each with the targets of that pass, or give all rows by hand, {_BY_HAND[call]}"
        )


_BY_HAND = {
    "loss": "peer.loss(features, logits, targets)",
    "penalty": "peer.penalty(features, logits, targets, classifier)",
}


class _Hook:
    """Records calls of a layer with gradients. A copy of it, in a copy of the model, does nothing."""

    def __init__(self, record: ForwardRecord) -> None:
        self._record = record

    def __call__(self, layer: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any], logits: Tensor) -> None:
        if torch.is_grad_enabled() and not _classifies_others.get():
            self._record.record(positional[0] if positional else named["input"], logits)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy or a pickle of the model has instead: a function that does nothing, and needs no library."""
        return getattr, (nullcontext(), "__exit__")
