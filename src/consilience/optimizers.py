"""SGD, sign-SGD, Adam and AdamW as pure functions over one flat vector of parameters.

State is passed in and returned, with a step count for each learner, so the same code updates one learner in a loop
and a thousand in a stack. Weight decay is added to the gradient, except in AdamW. `clip` bounds the norm of a learner's
whole gradient. Agrees with torch.optim and torch.nn.utils.clip_grad_norm_ (a test compares).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from consilience.config.schedules import Rate, as_number, constant_number, number_or_schedule
from consilience.errors import ConfigurationError, UnknownName

Slots = dict[str, Tensor]
_PART = 1 << 17  # values that a processor's cache holds with all that a step computes from them
_CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


class Optimizer(Protocol):
    """A local optimizer: `slots` names its state vectors.

    A dataclass with a field `clip`. But for clipping, what a parameter becomes depends on its own gradient and state
    alone: `update_in_place` takes parts of the vectors by themselves.
    """

    varies: ClassVar[tuple[str, ...]]
    """Fields, all numbers, that may differ between learners of one cohort and may be schedules."""
    adaptive: ClassVar[bool]
    """Whether its steps have about the size of the learning rate, whatever the size of the gradient."""

    @property
    def clip(self) -> float | None:
        """The largest norm that a gradient keeps; None where it is not bounded."""
        ...

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors of state."""
        ...

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """New parameters and state after step number `step` (the first is 1; a number or a tensor)."""
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum (Nesterov's, where asked for) and weight decay."""

    varies: ClassVar[tuple[str, ...]] = ("lr",)
    adaptive: ClassVar[bool] = False
    lr: Rate = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        number_or_schedule("lr", self.lr)
        constant_number("momentum", self.momentum)
        constant_number("weight_decay", self.weight_decay)
        _check_clip(self.clip)
        if self.nesterov and not self.momentum:
            raise ConfigurationError("nesterov is a form of momentum, and momentum is 0; set momentum, such as 0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        """The velocity, where there is momentum."""
        return ("velocity",) if self.momentum else ()

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """One step."""
        gradient = clip_norm(gradient, self.clip)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameters
        if not self.momentum:
            return parameters - as_number(self.lr) * gradient, state
        # The velocity starts at zero, so the first step uses the gradient unchanged, as torch.optim does.
        velocity = self.momentum * state["velocity"] + gradient
        ahead = gradient + self.momentum * velocity if self.nesterov else velocity
        return parameters - as_number(self.lr) * ahead, {"velocity": velocity}


@dataclass(frozen=True)
class SignSGD:
    """The sign of the gradient, and not its size, moves a parameter: steps of lr (Bernstein et al. 2018).

    A parameter whose gradient is 0 stays. Weight decay is added to the gradient before its sign is taken.
    """

    varies: ClassVar[tuple[str, ...]] = ("lr",)
    adaptive: ClassVar[bool] = True
    lr: Rate = 1e-3
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        number_or_schedule("lr", self.lr)
        constant_number("weight_decay", self.weight_decay)
        _check_clip(self.clip)

    @property
    def slots(self) -> tuple[str, ...]:
        """It has no state."""
        return ()

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """One step."""
        gradient = clip_norm(gradient, self.clip)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameters
        return parameters - as_number(self.lr) * gradient.sign(), state


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015)."""

    varies: ClassVar[tuple[str, ...]] = ("lr",)
    adaptive: ClassVar[bool] = True
    lr: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    count_each: bool = False
    """Whether the steps of every parameter are counted by itself: parts of a model may have taken different numbers."""

    def __post_init__(self) -> None:
        number_or_schedule("lr", self.lr)
        constant_number("weight_decay", self.weight_decay)
        _check_clip(self.clip)
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ConfigurationError(f"betas are {self.beta1} and {self.beta2}; each must be from 0 to below 1")

    @property
    def slots(self) -> tuple[str, ...]:
        """First and second moments, and the steps of each parameter where they are counted."""
        return ("first", "second", "steps") if self.count_each else ("first", "second")

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """One step."""
        gradient = clip_norm(gradient, self.clip)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameters
        return self._moved(parameters, gradient, state, step)

    def _moved(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        first = state["first"].lerp(gradient, 1 - self.beta1)
        second = (self.beta2 * state["second"]).addcmul(gradient, gradient, value=1 - self.beta2)
        slots = {"first": first, "second": second}
        if self.count_each:
            step = slots["steps"] = state["steps"] + 1
        scale = as_number(self.lr) / _bias_correction(self.beta1, step, parameters)
        spread = second.sqrt() / _bias_correction(self.beta2, step, parameters) ** 0.5 + self.eps
        return parameters - scale * (first / spread), slots


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient (Loshchilov and Hutter 2019)."""

    weight_decay: float = 0.01

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """One step."""
        decayed = parameters * (1 - as_number(self.lr) * self.weight_decay) if self.weight_decay else parameters
        return self._moved(decayed, clip_norm(gradient, self.clip), state, step)


def update_in_place(
    optimizer: Optimizer,
    parameters: Tensor,
    gradient: Tensor,
    state: Slots,
    step: int,
    changed: Tensor | None = None,
) -> None:
    """One step of one learner, of its vectors themselves, with the bits of `update`.

    On a CPU a part of the vectors at a time: what a step computes from ten million parameters would otherwise be memory
    that the system gives and takes back at every operation, which takes longer than the arithmetic.
    changed: (parameters,) which parameters change; None if all do. The state changes with all of them.
    """
    gradient, part = clip_norm(gradient, optimizer.clip), copy(optimizer)
    object.__setattr__(part, "clip", None)
    for where in _parts(parameters):
        before, slots = parameters[where], {name: values[where] for name, values in state.items()}
        moved, new = part.update(before, gradient[where], slots, step)
        before.copy_(moved if changed is None else torch.where(changed[where], moved, before))
        for name, values in new.items():
            slots[name].copy_(values)


def _parts(vector: Tensor) -> Iterator[slice]:
    size = _PART if vector.device.type == "cpu" else max(len(vector), 1)
    return (slice(start, start + size) for start in range(0, len(vector), size))


def clip_norm(gradient: Tensor, largest: float | None) -> Tensor:
    """The gradient, (..., parameters), shortened where its norm is above `largest`, as torch does it.

    Every learner has a factor, which is 1 where nothing is to be clipped: nothing branches on values.
    """
    if largest is None:
        return gradient
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return gradient * (largest / (norm + _CLIP_EPS)).clamp(max=1.0)


def _check_clip(clip: float | None) -> None:
    if clip is not None and not 0 < clip < math.inf:
        raise ConfigurationError(f"clip is {clip!r}; it must be a number above 0, or left out")


def _bias_correction(beta: float, step: Any, like: Tensor) -> Any:
    """1 - beta ** step, computed in float64: in float32, 1 - 0.999 is wrong in the fifth digit."""
    if not isinstance(step, Tensor):
        return 1 - beta**step
    return (1 - beta ** step.to(torch.float32 if step.device.type == "mps" else torch.float64)).to(like.dtype)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD, "sign-sgd": SignSGD}


def build_optimizer(
    name: str,
    lr: Rate,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    clip: float | None = None,
) -> Optimizer:
    """The optimizer of that name."""
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    if name == "sgd":
        return SGD(lr, momentum, weight_decay, nesterov, clip)
    if momentum:
        raise ConfigurationError(f"momentum is {momentum}, and optimizer {name!r} does not use it; momentum is for sgd")
    if nesterov:
        raise ConfigurationError(f"nesterov is set, and optimizer {name!r} has no such momentum; nesterov is for sgd")
    return OPTIMIZERS[name](lr=lr, weight_decay=weight_decay, clip=clip)
