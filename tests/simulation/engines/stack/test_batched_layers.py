"""Batched layers compute the same as `vmap` and as each learner separately."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from consilience import simulate
from consilience.models import SplitModel
from consilience.simulation.engines.stack.batched_layers import Layers

LEARNERS, SAMPLES = 3, 5

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(2, 4, 3), (2, 7, 6)),
    "no bias, stride": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), (2, 7, 6)),
    "groups of its own": (lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2), (4, 8, 8)),
    "same size": (lambda: nn.Conv2d(2, 4, 3, padding="same"), (2, 7, 6)),
    "reflected": (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), (2, 7, 6)),
    "norm": (lambda: nn.BatchNorm2d(4), (4, 5, 5)),
    "norm of vectors": (lambda: nn.BatchNorm1d(4), (4,)),
    "norm of series": (lambda: nn.BatchNorm1d(4), (4, 6)),
    "norm of volumes": (lambda: nn.BatchNorm3d(2), (2, 3, 3, 3)),
    "norm without scale": (lambda: nn.BatchNorm2d(4, affine=False), (4, 5, 5)),
    "norm without memory": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (4, 5, 5)),
    "pool": (lambda: nn.MaxPool2d(2), (3, 7, 6)),
    "pool that overlaps": (lambda: nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), (3, 7, 6)),
    "average pool": (lambda: nn.AdaptiveAvgPool2d(1), (3, 7, 6)),
    "average pool to a grid": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (3, 7, 6)),
    "all": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)
        ),
        (1, 8, 8),
    ),
}


def stacked_state(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Stacked parameters and buffers, different for each learner."""
    generator = torch.Generator().manual_seed(0)

    def different(tensor: Tensor) -> Tensor:
        rows = tensor.detach().expand(LEARNERS, *tensor.shape).clone()
        noise = torch.rand(rows.shape, generator=generator, dtype=torch.float64)
        return rows + noise if rows.is_floating_point() else rows

    parameters = {name: different(p).requires_grad_() for name, p in module.named_parameters()}
    return parameters, {name: different(b) for name, b in module.named_buffers()}


def outputs_and_gradients(module: nn.Module, inputs: Tensor, together: bool) -> list[Tensor]:
    """The output, the gradients, and the updated buffers."""
    parameters, buffers = stacked_state(module)
    inputs = inputs.clone().requires_grad_()
    with Layers() if together else nullcontext():
        out = vmap(lambda p, b, x: functional_call(module, (p, b), (x,)))(parameters, buffers, inputs)
    leaves = [inputs, *parameters.values()]
    gradients = torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape).sin()).sum(), leaves)
    return [out, *gradients, *buffers.values()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_batched_layers_equal_vmap_per_learner(name: str, training: bool) -> None:
    make, shape = MODULES[name]
    module = make().double().train(training)
    inputs = torch.randn(LEARNERS, SAMPLES, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for one, other in zip(
        outputs_and_gradients(module, inputs, together=True),
        outputs_and_gradients(module, inputs, together=False),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_max_pool_with_indices_is_batched() -> None:
    pool = nn.MaxPool2d(2, return_indices=True)
    inputs = torch.randn(LEARNERS, SAMPLES, 3, 4, 4)
    with Layers():
        values, places = vmap(pool)(inputs)
    assert values.shape == places.shape == (LEARNERS, SAMPLES, 3, 2, 2)
    with Layers():
        again, _ = vmap(lambda x: torch.nn.functional.max_pool2d(x, 2, 2, 0, 1, False, True))(inputs)
    torch.testing.assert_close(again, values)
    torch.testing.assert_close(values, torch.stack([pool(x)[0] for x in inputs]))


def test_shared_batch_norm_buffers_are_refused() -> None:
    """`vmap` refuses it too: learners cannot each update the same buffer."""
    mean, variance = torch.zeros(4), torch.ones(4)
    inputs = torch.randn(LEARNERS, SAMPLES, 4, 3, 3)
    with Layers(), pytest.raises(RuntimeError, match="running_mean"):
        vmap(lambda x: torch.nn.functional.batch_norm(x, mean, variance, training=True))(inputs)


def test_batched_convolution_accepts_an_empty_batch() -> None:
    module = nn.Conv2d(2, 4, 3)
    with Layers():
        assert vmap(module)(torch.zeros(LEARNERS, 0, 2, 5, 5)).shape == (LEARNERS, 0, 4, 3, 3)


def test_batched_layers_accept_keyword_arguments() -> None:
    """A model may pass the arguments of a layer by keyword."""
    weights, inputs = torch.randn(LEARNERS, 4, 2, 3, 3), torch.randn(LEARNERS, SAMPLES, 2, 6, 6)
    with Layers():
        out = vmap(lambda w, x: torch.nn.functional.conv2d(input=x, weight=w, stride=2))(weights, inputs)
    one_by_one = [torch.conv2d(x, w, stride=2) for w, x in zip(weights, inputs, strict=True)]
    torch.testing.assert_close(out, torch.stack(one_by_one))


def test_batched_layers_do_not_copy_activations() -> None:
    """A convolution, a norm and a pool are one operation each, and none of them copies the images."""

    class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.large: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            first = out[0] if isinstance(out, tuple | list) else out
            if isinstance(first, Tensor) and first.numel() >= LEARNERS * SAMPLES * 8 * 6 * 6 and not func.is_view:
                self.large.append(str(func))
            return out

    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.MaxPool2d(2))
    parameters, buffers = stacked_state(module)
    counted = Counted()
    inputs = torch.randn(SAMPLES, LEARNERS, 8, 12, 12)
    with torch.no_grad(), Layers():
        work = vmap(lambda p, b, x: functional_call(module, (p, b), (x,)), in_dims=(0, 0, 1))
        parameters = {name: p.float() for name, p in parameters.items()}
        buffers = {name: b.float() if b.is_floating_point() else b for name, b in buffers.items()}
        with counted:
            work(parameters, buffers, inputs)
    assert len(counted.large) == 3 and not any("copy" in name or "clone" in name for name in counted.large)


class Normed(SplitModel):
    """A model that has every layer type with a batching rule."""

    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8)
            ),
            nn.Linear(8, 10),
        )


def test_batch_norm_trains_in_half_precision() -> None:
    """The running statistics stay in full precision while the model runs in half precision."""
    runs = [
        simulate(model=Normed, method="consilience", rounds=2, learners=3, engine="stack", precision=precision)
        for precision in ("bf16", "float32")
    ]
    half, full = (run.history.records[-1]["loss.cross_entropy"].mean() for run in runs)
    assert half == pytest.approx(full, rel=0.05) and half != full
