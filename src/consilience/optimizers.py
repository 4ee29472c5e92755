"""SGD and Adam as pure functions over one flat vector of parameters.

State is passed in and returned, with a step count for each learner, so the same code updates one learner in a loop
and a thousand in a stack. Weight decay is added to the gradient. Agrees with torch.optim (a test compares).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from consilience.config.schedules import Rate, as_number, constant_number, number_or_schedule
from consilience.errors import ConfigurationError, UnknownName

Slots = dict[str, Tensor]


class Optimizer(Protocol):
    """A local optimizer: `slots` names its state vectors."""

    varies: ClassVar[tuple[str, ...]]
    """Fields, all numbers, that may differ between learners of one cohort and may be schedules."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors of state."""
        ...

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """New parameters and state after step number `step` (the first is 1; a number or a tensor)."""
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum and weight decay."""

    varies: ClassVar[tuple[str, ...]] = ("lr",)
    lr: Rate = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        number_or_schedule("lr", self.lr)
        constant_number("momentum", self.momentum)
        constant_number("weight_decay", self.weight_decay)

    @property
    def slots(self) -> tuple[str, ...]:
        """The velocity, where there is momentum."""
        return ("velocity",) if self.momentum else ()

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """One step."""
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameters
        if not self.momentum:
            return parameters - as_number(self.lr) * gradient, state
        # The velocity starts at zero, so the first step uses the gradient unchanged, as torch.optim does.
        velocity = self.momentum * state["velocity"] + gradient
        return parameters - as_number(self.lr) * velocity, {"velocity": velocity}


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015)."""

    varies: ClassVar[tuple[str, ...]] = ("lr",)
    lr: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        number_or_schedule("lr", self.lr)
        constant_number("weight_decay", self.weight_decay)
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ConfigurationError(f"betas are {self.beta1} and {self.beta2}; each must be from 0 to below 1")

    @property
    def slots(self) -> tuple[str, ...]:
        """First and second moments."""
        return ("first", "second")

    def update(self, parameters: Tensor, gradient: Tensor, state: Slots, step: Any) -> tuple[Tensor, Slots]:
        """One step."""
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameters
        first = state["first"].lerp(gradient, 1 - self.beta1)
        second = (self.beta2 * state["second"]).addcmul(gradient, gradient, value=1 - self.beta2)
        scale = as_number(self.lr) / _bias_correction(self.beta1, step, parameters)
        spread = second.sqrt() / _bias_correction(self.beta2, step, parameters) ** 0.5 + self.eps
        return parameters - scale * (first / spread), {"first": first, "second": second}


def _bias_correction(beta: float, step: Any, like: Tensor) -> Any:
    """1 - beta ** step, computed in float64: in float32, 1 - 0.999 is wrong in the fifth digit."""
    return (1 - beta ** step.double()).to(like.dtype) if isinstance(step, Tensor) else 1 - beta**step


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "sgd": SGD}


def build_optimizer(name: str, lr: Rate, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """The optimizer of that name."""
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    if name == "sgd":
        return SGD(lr=lr, momentum=momentum, weight_decay=weight_decay)
    if momentum:
        raise ConfigurationError(f"momentum is {momentum}, and optimizer {name!r} has its own; momentum is for sgd")
    return OPTIMIZERS[name](lr=lr, weight_decay=weight_decay)
