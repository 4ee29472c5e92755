"""What a caller's classifier read and returned in its newest training forward pass, so that nobody has to pass it on.

A hook on the linear layer records the pass. Passes without gradients, such as validation, are not recorded. A record
serves one `loss` and one `penalty`, in either order; then, or at the next forward pass, it is dropped, and with it the
graph that it keeps alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError


@contextmanager
def not_recorded(layer: nn.Module | None) -> Iterator[None]:
    """In this block, calls of a layer are no forward pass of its owner's: a penalty applies it to others' features."""
    hooks = () if layer is None else tuple(layer._forward_hooks.values())
    records = [hook.record for hook in hooks if isinstance(hook, _Hook)]
    for record in records:
        record.paused = True
    try:
        yield
    finally:
        for record in records:
            record.paused = False


class ForwardRecord:
    """Records the newest forward pass of a linear layer with gradients. name: the layer's, for messages."""

    def __init__(self, layer: nn.Linear, name: str) -> None:
        self.name, self.paused = name, False
        self.newest: tuple[Tensor, Tensor, set[str]] | None = None
        """What the layer read and returned, and the calls that have used it."""
        self._served = self._closed = False
        self._handle = layer.register_forward_hook(_Hook(self), with_kwargs=True)

    def use(self, call: str, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of the newest forward pass, for these targets; call: `loss` or `penalty`."""
        if self.newest is None or call in self.newest[2]:
            raise ConfigurationError(self._nothing(call))
        features, logits, used = self.newest
        if features.ndim != 2 or features.shape[:1] != targets.shape[:1]:
            raise ConfigurationError(self._other_rows(call, tuple(features.shape), tuple(targets.shape)))
        used.add(call)
        if used >= {"loss", "penalty"}:
            self.newest, self._served = None, True
        return features, logits

    def drop(self) -> None:
        """Forget the newest forward pass, and the graph that it keeps alive."""
        self.newest, self._served = None, False

    def close(self) -> None:
        """Remove the hook."""
        self.drop()
        self._closed = True
        self._handle.remove()

    def _nothing(self, call: str) -> str:
        if self._closed:
            return f"peer.{call}(targets) was called after peer.close(); join again, and use what that returns"
        if self.newest is not None or self._served:
            return (
                f"peer.{call}(targets) was called twice after one forward pass of your model; call the model before "
                f"each {call}, outside of torch.no_grad(), or give features and logits by hand, {_BY_HAND[call]}"
            )
        return (
            f"peer.{call}(targets) uses your model's last forward pass with gradients, and there was none since the "
            f"last {call}: the layer {self.name!r} was not called. Call the model before {call}, outside of "
            f"torch.no_grad(); if another layer computes the logits, name it, consilience.join(..., layer=...); if the "
            f"model was compiled and called before join, compile it again after join, with torch.compiler.reset()"
        )

    def _other_rows(self, call: str, features: tuple[int, ...], targets: tuple[int, ...]) -> str:
        if len(features) != 2:
            return (
                f"the layer {self.name!r} read features of the shape {features} for targets of the shape {targets}; "
                f"{call} takes (rows, width), one row per target. If your model applies it to each position of a "
                f"sequence, select or pool positions before the layer, or give rows by hand, {_BY_HAND[call]}"
            )
        return (
            f"the layer {self.name!r} read {features[0]} rows in your model's last forward pass, and {call} was given "
            f"{targets[0] if targets else 'one'} targets. With several forward passes per batch, call {call} after "
            f"each, with the targets of that pass, or give all rows by hand, {_BY_HAND[call]}"
        )


_BY_HAND = {
    "loss": "peer.loss(features, logits, targets)",
    "penalty": "peer.penalty(features, logits, targets, classifier)",
}


class _Hook:
    """Records calls of a layer with gradients. A copy of it, in a copy of the model, does nothing."""

    def __init__(self, record: ForwardRecord) -> None:
        self.record = record

    def __call__(self, layer: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any], logits: Tensor) -> None:
        if torch.is_grad_enabled() and not self.record.paused:
            self.record.newest = (positional[0] if positional else named["input"], logits, set())

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy or a pickle of the model has instead: a function that does nothing, and needs no library."""
        return getattr, (nullcontext(), "__exit__")
