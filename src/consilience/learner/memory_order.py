"""Models that expect images with their channels first in memory, where kernels of convolutions have them last.

A convolution whose kernels have their channels last, which is faster, returns images in that order too. Most models
do not notice, but `x.view(len(x), -1)` after a convolution fails. For a model that cannot run so, convolutions return
their images with channels first; `x.flatten(1)` in the place of `view` spares the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


def accept_channels_last(roots: Iterable[nn.Module], run: Callable[[], object], device: torch.device) -> bool:
    """Let models run with kernels of either order in memory; False where one cannot, whatever is done.

    run: a forward pass through them, of a few samples, on the device.
    """
    modules = list(roots)
    kernels = [p for root in modules for p in root.parameters() if p.ndim == 4]
    if not kernels:
        return True
    generators = [device] if device.type == "cuda" else []
    with _in_evaluation_mode(modules), torch.random.fork_rng(devices=generators), torch.no_grad():
        with _channels_last(kernels):
            if _runs(run):
                return True
        if not _runs(run):
            return True  # for another reason, which its first use will tell
        for convolution in (m for root in modules for m in root.modules() if isinstance(m, _CONVOLUTIONS)):
            convolution.register_forward_hook(_channels_first)
        with _channels_last(kernels):
            return _runs(run)


def refuse_channels_first(called: str) -> None:
    """Refuse a model that would have to run with channels last in memory, and cannot."""
    raise ConfigurationError(
        f"model {called!r} cannot run with kernels of convolutions that have their channels last in memory, as they "
        f"have on a CPU; use x.flatten(1) or x.reshape(...) instead of x.view(...), or torch.nn.Conv2d instead of "
        f"torch.nn.functional.conv2d"
    )


def _channels_first(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.contiguous()


def _runs(run: Callable[[], object]) -> bool:
    try:
        run()
    except Exception:
        return False
    return True


@contextmanager
def _channels_last(kernels: Iterable[nn.Parameter]) -> Iterator[None]:
    """For a while, kernels with their channels last in memory."""
    own = [(kernel, kernel.data) for kernel in kernels]
    for kernel, values in own:
        kernel.data = values.to(memory_format=torch.channels_last)  # with one input channel contiguous() would not
    try:
        yield
    finally:
        for kernel, values in own:
            kernel.data = values


@contextmanager
def _in_evaluation_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """For a while, without dropout, and with the running statistics as they are."""
    every = [(module, module.training) for root in modules for module in root.modules()]
    for module, _ in every:
        module.training = False
    try:
        yield
    finally:
        for module, training in every:
            module.training = training
