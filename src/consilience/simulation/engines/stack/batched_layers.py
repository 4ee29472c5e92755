"""Layers of many learners as one operation, where `vmap` by itself takes several or copies their inputs.

The layout of learners' images is (samples, learners x channels, height, width): a convolution is then a grouped one,
batch normalization and pooling just see more channels, and nothing is copied between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MIN_CHANNELS_LAST = 32  # channels from which tensor cores are faster with channels innermost

Rule = Callable[..., Tensor]
"""A layer for all learners: takes the number of learners, their images, their other tensors end to end, and options."""


class Layers(TorchFunctionMode):
    """While it is active, inside a `vmap`, layers that have a rule are computed for all learners at once."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called for every torch function: replaces layers that have a rule."""
        given = dict(kwargs or {})
        layer = _LAYERS.get(func)
        return func(*args, **given) if layer is None else layer(*args, **given)


class _Layer:
    """A layer with a rule: the names of its arguments, tensors first, and how many dimensions its input may have."""

    def __init__(
        self, layer: Callable[..., Any], rule: Rule, tensors: str, others: str, dims: Sequence[int] = (4,)
    ) -> None:
        self.layer, self.tensors, self.others, self.dims = layer, tensors.split(), others.split(), dims

        class Stacked(torch.autograd.Function):
            """Gives `vmap` the rule; autograd differentiates the operations of the rule."""

            @staticmethod
            def forward(how: dict[str, Any], *given: Any) -> Any:
                """Not implemented: it is only used inside a `vmap`."""
                raise NotImplementedError

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                """Nothing is saved for the backward pass."""

            @staticmethod
            def vmap(info: Any, where: Sequence[Any], how: dict[str, Any], *given: Any) -> tuple[Tensor, int]:
                """Apply the rule for all learners."""
                learners, (images, *rest) = info.batch_size, zip(given, where[1:], strict=True)
                rows = [None if tensor is None else _learners_as_rows(tensor, at, learners) for tensor, at in rest]
                output = rule(learners, _learners_as_channels(*images, learners), *rows, **how)
                return output.view(len(output), learners, output.shape[1] // learners, *output.shape[2:]), 1

        self._stacked: Any = Stacked

    def __call__(self, *args: Any, **given: Any) -> Any:
        """The layer for one learner inside a `vmap`; by the rule where it applies."""
        named = dict(zip((*self.tensors, *self.others), args, strict=False)) | given
        x = named.get("input")
        if not _is_batched(x) or x.ndim not in self.dims or named.get("return_indices"):
            return self.layer(*args, **given)
        statistics = [named.get(name) for name in ("running_mean", "running_var")]
        if named.get("training") and any(tensor is not None and not _is_batched(tensor) for tensor in statistics):
            return self.layer(*args, **given)  # torch refuses learners that change a shared tensor
        own = [named.get(name) for name in self.tensors[1:]]
        if own and not any(_is_batched(tensor) for tensor in own):
            return self.layer(*args, **given)  # a frozen layer is one for all learners: their images are more samples
        how = {name: value for name, value in named.items() if name not in self.tensors}
        return self._stacked.apply(how, *(named.get(name) for name in self.tensors))


def _is_batched(x: Any) -> TypeGuard[Tensor]:
    """Whether every learner has its own values of this tensor."""
    return isinstance(x, Tensor) and torch._C._functorch.is_batchedtensor(x)


def _convolution(
    learners: int, images: Tensor, kernels: Tensor, bias: Tensor | None, groups: int = 1, **how: Any
) -> Tensor:
    one_or_half_precision = learners == 1 or torch.is_autocast_enabled("cuda")
    if images.is_cuda and one_or_half_precision and kernels.shape[1] >= _MIN_CHANNELS_LAST:
        images, kernels = (t.contiguous(memory_format=torch.channels_last) for t in (images, kernels))
    return torch.conv2d(images, kernels, bias, groups=learners * groups, **how)


def _batch_norm(learners: int, x: Tensor, *vectors: Tensor | None, **how: Any) -> Tensor:
    mean, variance, scale, shift = vectors
    return F.batch_norm(x, mean, variance, scale, shift, **how)


def _max_pool(learners: int, x: Tensor, **how: Any) -> Tensor:
    pooled: Tensor = F.max_pool2d(x, **how)
    return pooled


def _average_pool(learners: int, x: Tensor, **how: Any) -> Tensor:
    return F.adaptive_avg_pool2d(x, **how)


def _learners_as_channels(x: Tensor, dim: int | None, learners: int) -> Tensor:
    """(samples, learners x channels, ...), whatever dimension the learners had."""
    each = x.unsqueeze(1).expand(-1, learners, *x.shape[1:]) if dim is None else x.movedim(dim, 1)
    return each.flatten(1, 2)


def _learners_as_rows(x: Tensor, dim: int | None, learners: int) -> Tensor:
    """(learners x first, ...): a view where the memory allows it, since running means are changed in place."""
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
    F.adaptive_avg_pool2d: _Layer(F.adaptive_avg_pool2d, _average_pool, "input", "output_size"),
}
