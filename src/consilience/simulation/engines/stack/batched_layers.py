"""Layers of many learners as one operation, where `vmap` by itself takes several or copies what they work on.

Learners' images lie as (samples, learners x channels, height, width): a convolution is then one in groups, batch
normalization and pooling just see more channels, and nothing is moved between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_WIDE = 32  # channels, from which tensor cores like them innermost

Rule = Callable[..., Tensor]
"""A layer for all learners: how many there are, their images, their other tensors end to end, and numbers by name."""


class Layers(TorchFunctionMode):
    """While it is on, and inside a `vmap`, layers that have a rule are done for all learners at once."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Any function of torch, on its way."""
        given = dict(kwargs or {})
        layer = _LAYERS.get(func)
        return func(*args, **given) if layer is None else layer(*args, **given)


class _Layer:
    """A layer with a rule of its own: its arguments by name, tensors first, and how many dimensions images may have."""

    def __init__(
        self, layer: Callable[..., Any], rule: Rule, tensors: str, others: str, dims: Sequence[int] = (4,)
    ) -> None:
        self.layer, self.tensors, self.others, self.dims = layer, tensors.split(), others.split(), dims

        class Stacked(torch.autograd.Function):
            """How `vmap` asks for the rule; gradients come from what the rule is made of."""

            @staticmethod
            def forward(how: dict[str, Any], *given: Any) -> Any:
                """Never: it is only called inside a `vmap`."""
                raise NotImplementedError

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                """Nothing needs to be kept."""

            @staticmethod
            def vmap(info: Any, where: Sequence[Any], how: dict[str, Any], *given: Any) -> tuple[Tensor, int]:
                """For all."""
                learners, (images, *rest) = info.batch_size, zip(given, where[1:], strict=True)
                rows = [None if tensor is None else _rows(tensor, at, learners) for tensor, at in rest]
                done = rule(learners, _wide(*images, learners), *rows, **how)
                return done.view(len(done), learners, done.shape[1] // learners, *done.shape[2:]), 1

        self._stacked: Any = Stacked

    def __call__(self, *args: Any, **given: Any) -> Any:
        """The layer for the learner whose tensors these are; by the rule where it fits."""
        named = dict(zip((*self.tensors, *self.others), args, strict=False)) | given
        x = named.get("input")
        if not _stacked(x) or x.ndim not in self.dims or named.get("return_indices"):
            return self.layer(*args, **given)
        memory = [named.get(name) for name in ("running_mean", "running_var")]
        if named.get("training") and any(tensor is not None and not _stacked(tensor) for tensor in memory):
            return self.layer(*args, **given)  # what is everybody's cannot be changed by each: refused there
        how = {name: value for name, value in named.items() if name not in self.tensors}
        return self._stacked.apply(how, *(named.get(name) for name in self.tensors))


def _stacked(x: Any) -> TypeGuard[Tensor]:
    """Whether every learner has its own."""
    return isinstance(x, Tensor) and torch._C._functorch.is_batchedtensor(x)


def _convolution(
    learners: int, images: Tensor, kernels: Tensor, bias: Tensor | None, groups: int = 1, **how: Any
) -> Tensor:
    alone_or_half = learners == 1 or torch.is_autocast_enabled("cuda")
    if images.is_cuda and alone_or_half and kernels.shape[1] >= _WIDE:
        images, kernels = (t.contiguous(memory_format=torch.channels_last) for t in (images, kernels))
    return torch.conv2d(images, kernels, bias, groups=learners * groups, **how)


def _batch_norm(learners: int, x: Tensor, *vectors: Tensor | None, **how: Any) -> Tensor:
    mean, variance, scale, shift = vectors
    return F.batch_norm(x, mean, variance, scale, shift, **how)


def _max_pool(learners: int, x: Tensor, **how: Any) -> Tensor:
    pooled: Tensor = F.max_pool2d(x, **how)
    return pooled


def _wide(x: Tensor, dim: int | None, learners: int) -> Tensor:
    """(samples, learners x channels, ...), wherever the learners were."""
    each = x.unsqueeze(1).expand(-1, learners, *x.shape[1:]) if dim is None else x.movedim(dim, 1)
    return each.flatten(1, 2)


def _rows(x: Tensor, dim: int | None, learners: int) -> Tensor:
    """(learners x first, ...): the same memory where it lies so, for running means are changed in place."""
    return (x.expand(learners, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)


_LAYERS: dict[Callable[..., Any], _Layer] = {
    torch.conv2d: _Layer(torch.conv2d, _convolution, "input weight bias", "stride padding dilation groups"),
    F.batch_norm: _Layer(
        F.batch_norm,
        _batch_norm,
        "input running_mean running_var weight bias",
        "training momentum eps",
        dims=(2, 3, 4, 5),
    ),
    F.max_pool2d: _Layer(
        F.max_pool2d, _max_pool, "input", "kernel_size stride padding dilation ceil_mode return_indices"
    ),
}
