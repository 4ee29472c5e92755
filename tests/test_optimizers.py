"""SGD, sign-SGD, Adam and AdamW as pure functions: they agree with torch.optim, in a loop and in a stack."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from consilience.config.parts import OPTIMIZER_NAMES
from consilience.errors import ConfigurationError, UnknownName
from consilience.optimizers import (
    OPTIMIZERS,
    SGD,
    Adam,
    AdamW,
    Optimizer,
    SignSGD,
    build_optimizer,
    clip_norm,
    update_in_place,
)

Torch = Callable[[list[Tensor]], torch.optim.Optimizer]

PAIRS: dict[str, tuple[Optimizer, Torch]] = {
    "sgd": (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd, decay": (SGD(0.1, weight_decay=0.2), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2)),
    "sgd, momentum": (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "sgd, both": (
        SGD(0.05, momentum=0.8, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, weight_decay=0.1),
    ),
    "adam": (Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam, decay": (Adam(0.01, weight_decay=0.3), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.3)),
    "adam, betas": (
        Adam(0.02, beta1=0.5, beta2=0.9, eps=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.5, 0.9), eps=1e-3),
    ),
    "sgd, nesterov": (
        SGD(0.05, momentum=0.8, weight_decay=0.1, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, weight_decay=0.1, nesterov=True),
    ),
    "adamw": (AdamW(lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
    "adamw, decay": (AdamW(0.01, weight_decay=0.3), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3)),
    "adamw, no decay": (AdamW(0.01, weight_decay=0.0), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0)),
    "sgd, clip": (
        SGD(0.1, momentum=0.9, weight_decay=0.2, clip=40.0),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2),
    ),
    # Adam without memory divides each gradient by its size.
    "sign-sgd": (SignSGD(0.1), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.0), eps=1e-30)),
    "sign-sgd, decay": (
        SignSGD(0.1, weight_decay=0.2),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.0), eps=1e-30, weight_decay=0.2),
    ),
    "adam, clip": (Adam(0.01, clip=0.1), lambda p: torch.optim.Adam(p, lr=0.01)),
}
every_pair = pytest.mark.parametrize(("ours", "theirs"), PAIRS.values(), ids=PAIRS.keys())
every_optimizer = pytest.mark.parametrize("ours", [ours for ours, _ in PAIRS.values()], ids=PAIRS.keys())


def slots(optimizer: Optimizer, like: Tensor) -> dict[str, Tensor]:
    return {name: torch.zeros_like(like) for name in optimizer.slots}


def gradients(steps: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(steps, size, generator=generator, dtype=torch.float64)
    drawn[:, 0] = 0  # somebody's gradient is always zero
    return (drawn * torch.logspace(-4, 2, size, dtype=torch.float64)).to(dtype)


def walk(optimizer: Optimizer, start: Tensor, grads: Tensor, step: Callable[[int], Any]) -> list[Tensor]:
    """The parameters after each step."""
    at, state, seen = start, slots(optimizer, start), []
    for number, gradient in enumerate(grads, start=1):
        at, state = optimizer.update(at, gradient, state, step(number))
        seen.append(at)
    return seen


# --- by hand


def test_one_step_of_sgd_by_hand() -> None:
    moved, state = SGD(lr=0.5).update(torch.tensor([1.0, -2.0]), torch.tensor([4.0, 2.0]), {}, 1)
    assert moved.tolist() == [-1.0, -3.0]
    assert state == {}


def test_two_steps_of_momentum_by_hand() -> None:
    optimizer, at, gradient = SGD(lr=0.5, momentum=0.5), torch.tensor([1.0]), torch.tensor([2.0])
    at, state = optimizer.update(at, gradient, slots(optimizer, at), 1)
    assert (at.item(), state["velocity"].item()) == (0.0, 2.0)
    at, state = optimizer.update(at, gradient, state, 2)
    assert (at.item(), state["velocity"].item()) == (-1.5, 3.0)


def test_first_step_of_adam_has_the_length_of_the_learning_rate() -> None:
    optimizer, at = Adam(lr=0.25), torch.zeros(3, dtype=torch.float64)
    gradient = torch.tensor([1e-3, -5.0, 0.0], dtype=torch.float64)
    moved, state = optimizer.update(at, gradient, slots(optimizer, at), 1)
    expected = torch.tensor([-0.25 / (1 + 1e-5), 0.25 / (1 + 2e-9), 0.0], dtype=torch.float64)
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(state["first"], 0.1 * gradient, rtol=1e-12, atol=0)
    torch.testing.assert_close(state["second"], 0.001 * gradient**2, rtol=1e-12, atol=0)


# --- against torch.optim


@every_pair
def test_fifty_steps_agree_with_torch(ours: Optimizer, theirs: Torch) -> None:
    start, grads = torch.linspace(-1, 1, 7, dtype=torch.float64), gradients(50, 7)
    parameter = torch.nn.Parameter(start.clone())
    reference = theirs([parameter])
    for number, moved in enumerate(walk(ours, start, grads, lambda n: n)):
        parameter.grad = grads[number].clone()
        if ours.clip is not None:
            torch.nn.utils.clip_grad_norm_([parameter], ours.clip)
        reference.step()
        torch.testing.assert_close(moved, parameter.data, rtol=1e-12, atol=1e-14)


@every_pair
def test_fifty_steps_agree_with_torch_in_single_precision(ours: Optimizer, theirs: Torch) -> None:
    start, grads = torch.linspace(-1, 1, 7), gradients(50, 7, torch.float32)
    parameter = torch.nn.Parameter(start.clone())
    reference = theirs([parameter])
    for gradient in grads:
        parameter.grad = gradient.clone()
        if ours.clip is not None:
            torch.nn.utils.clip_grad_norm_([parameter], ours.clip)
        reference.step()
    moved = walk(ours, start, grads, lambda n: n)[-1]
    assert moved.dtype == torch.float32
    torch.testing.assert_close(moved, parameter.data, rtol=1e-5, atol=1e-6)


# --- as a number, as a tensor, and in a stack


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_step_as_number_and_as_tensor_agree(ours: Optimizer, dtype: torch.dtype) -> None:
    start, grads = torch.linspace(-1, 1, 7, dtype=dtype), gradients(50, 7, dtype)
    tight = 1e-12 if dtype == torch.float64 else 1e-6
    numbers, tensors = (walk(ours, start, grads, step) for step in (int, torch.tensor))
    for by_number, by_tensor in zip(numbers, tensors, strict=True):
        assert by_tensor.dtype == dtype
        torch.testing.assert_close(by_tensor, by_number, rtol=tight, atol=tight / 100)


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_stack_moves_every_learner_by_its_own_step(ours: Optimizer, dtype: torch.dtype) -> None:
    """Three learners who have taken 0, 3 and 40 steps take one more, at once and one by one."""
    grads = gradients(41, 21, dtype).reshape(41, 3, 7)
    taken, start = (0, 3, 40), torch.linspace(-1, 1, 21, dtype=dtype).reshape(3, 7)
    at, state = start.clone(), slots(ours, start)
    for i, steps in enumerate(taken):
        mine = slots(ours, start[i])
        for number in range(steps):
            at[i], mine = ours.update(at[i].clone(), grads[number, i], mine, number + 1)
        for name, value in mine.items():
            state[name][i] = value
    last = torch.stack([grads[steps, i] for i, steps in enumerate(taken)])
    stacked, kept = torch.func.vmap(ours.update)(at, last, state, torch.tensor(taken) + 1)
    assert stacked.dtype == dtype
    tight = 1e-12 if dtype == torch.float64 else 1e-6
    for i, steps in enumerate(taken):
        alone, own = ours.update(at[i], last[i], {k: v[i] for k, v in state.items()}, steps + 1)
        torch.testing.assert_close(stacked[i], alone, rtol=tight, atol=tight / 100)
        for name, value in own.items():
            torch.testing.assert_close(kept[name][i], value, rtol=tight, atol=0)


@every_optimizer
def test_nothing_handed_in_is_changed(ours: Optimizer) -> None:
    at, gradient = torch.ones(3), torch.tensor([1.0, 2.0, 3.0])
    state = slots(ours, at)
    ours.update(at, gradient, state, 1)
    assert at.tolist() == [1.0, 1.0, 1.0] and gradient.tolist() == [1.0, 2.0, 3.0]
    assert all(not v.any() for v in state.values())


@every_optimizer
@pytest.mark.parametrize("changed", [None, torch.arange(300_000) % 3 > 0], ids=["all", "two thirds"])
def test_steps_in_place_have_the_bits_of_steps_at_once(ours: Optimizer, changed: Tensor | None) -> None:
    """300,000 parameters are three parts, the last a partial one."""
    grads, start = gradients(3, 300_000, torch.float32), torch.linspace(-1, 1, 300_000)
    ours = copy(ours)
    object.__setattr__(ours, "lr", torch.tensor(0.01))  # a learner's own, as in a sweep
    at, state = start, slots(ours, start)
    here, own = start.clone(), slots(ours, start)
    for number, gradient in enumerate(grads, start=1):
        before = at
        at, state = ours.update(at, gradient, state, number)
        at = at if changed is None else torch.where(changed, at, before)
        update_in_place(ours, here, gradient, own, number, changed)
    assert here.equal(at) and not here.equal(start)
    assert all(own[name].equal(value) for name, value in state.items())
    assert changed is None or here[~changed].equal(start[~changed])


def test_clipping_shortens_long_gradients_only_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    clipped = clip_norm(rows, 1.0)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(clipped, expected, rtol=1e-6, atol=0)
    assert clipped[1:].equal(rows[1:]) and clip_norm(rows, None) is rows


# --- settings


def test_optimizers_by_name() -> None:
    assert build_optimizer("sgd", 0.1, momentum=0.5) == SGD(0.1, momentum=0.5)
    assert build_optimizer("adam", 0.2) == Adam(0.2)
    assert build_optimizer("adamw", 0.2, weight_decay=0.1, clip=2.0) == AdamW(0.2, weight_decay=0.1, clip=2.0)
    assert build_optimizer("sgd", 0.1, 0.5, nesterov=True) == SGD(0.1, momentum=0.5, nesterov=True)
    assert build_optimizer("sign-sgd", 0.1, weight_decay=0.2) == SignSGD(0.1, weight_decay=0.2)
    assert set(OPTIMIZER_NAMES) == set(OPTIMIZERS)
    with pytest.raises(UnknownName, match="'adam'"):
        build_optimizer("adan", 0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("adam", 0.1, 0.0, 0.0, True), "nesterov is for sgd"),
        (("adamw", 0.1, 0.9), "momentum is for sgd"),
        (("sgd", 0.1, 0.0, 0.0, True), "set momentum"),
        (("sign-sgd", 0.1, 0.9), "momentum is for sgd"),
        (("sign-sgd", -0.1), "lr"),
        (("sgd", 0.1, 0.0, 0.0, False, 0.0), "clip is 0.0; it must be a number above 0"),
        (("adam", 0.1, 0.0, 0.0, False, -1.0), "clip is -1.0"),
    ],
)
def test_combinations_that_cannot_work_are_refused(settings: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build_optimizer(*settings)


@pytest.mark.parametrize(
    "settings",
    [{"lr": -0.1}, {"lr": float("nan")}, {"lr": 0.1, "beta1": 1.0}, {"lr": 0.1, "beta2": -0.1}],
    ids=str,
)
def test_settings_of_adam_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Adam(**settings)


@pytest.mark.parametrize("settings", [{"lr": float("inf")}, {"lr": 0.1, "momentum": -1.0}], ids=str)
def test_settings_of_sgd_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SGD(**settings)


def test_sign_sgd_by_hand() -> None:
    """Steps of a quarter against the gradient, whatever its size; none without a gradient."""
    start, gradient = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1e-9, -50.0, 0.0])
    moved, state = SignSGD(0.25).update(start, gradient, {}, 1)
    assert moved.tolist() == [0.75, 1.25, 1.0] and state == {}
