"""Gradients: a part of the model that all learners share and that only votes move (Ma et al. 2020).

Each learner uploads one bit per weight, whether it should grow or shrink; the majority decides, one bit back, and the
weight moves by a step of fixed length: w <- w - delta x sign(sum of signs), equation 9 of the paper. All votes count
the same. A tie, and a gradient of exactly 0, is decided by a keyed coin that is the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from consilience.config.schedules import constant_number
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Contribution, Exchange, Received, Start, State, Update, View
from consilience.exchanges.weights import covered_parameters
from consilience.randomness import coin_flips
from consilience.task import Task
from consilience.validation import check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Bit

VOTE = Bit(unit=1.0)


@dataclass(frozen=True)
class Gradients(Exchange):
    """Move a part of the model by all learners' gradients of it, the means over a round's batches.

    part: what this exchange moves instead of the local optimizer: a part of a cut model, a module's name or a glob.
    delta: how far a weight moves in a round. vote: whether signs are counted, one bit each way, unweighted; else the
    mean gradient, weighted by sample counts, times delta. max_staleness: a vote about common values that have moved
    more often since does not count.
    """

    name: str = field(default="gradients", kw_only=True)
    varies: ClassVar[tuple[str, ...]] = ()  # delta is part of the encoding, which all members share
    mismatch_hint: ClassVar[str] = (
        "delta must be the same for all: it is a setting of the method and not of a group. A part is shared this way "
        "among equal models only"
    )
    needs_representations: ClassVar[bool] = False
    start: Start = field(default="common", init=False)
    part: str = "server"
    delta: float = 1e-3
    vote: bool = True
    every: int = 1
    max_staleness: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.part, str) or not self.part:
            raise ConfigurationError(
                f"part is {self.part!r}; it must be the name of a part or a module, such as 'server', or a glob"
            )
        constant_number("delta", self.delta, low=1e-12)
        check_integer("every", self.every)
        check_integer("max_staleness", self.max_staleness, low=0)

    @property
    def owned_part(self) -> str:
        """The part that only this exchange moves."""
        return self.part

    def channel(self, task: Task) -> schema.Mean:
        """A moving mean with one tensor for each parameter of the part."""
        up, down = (VOTE, Bit(unit=self.delta)) if self.vote else (FLOAT32, FLOAT32)
        names = covered_parameters(self.name, self.part, task)
        tensors = {n: schema.Tensor(task.parameters[n], up, down) for n in names}
        return schema.Mean(self.name, tensors, moving=True, max_staleness=self.max_staleness)

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        what = "the sign of every gradient" if self.vote else "every gradient"
        return f"{what} of {self.part}"

    def common_values(self, view: View) -> dict[str, Tensor]:
        """The common model's own weights."""
        return {n: view.parameters[n] for n in view.task.covered(self.part, view.parameters)}

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The direction in which each weight should move: against its gradient."""
        if not self.vote:
            return Contribution({n: -self.delta * g for n, g in view.gradients.items()}, view.samples)
        directions = {n: _with_coin_flips(f"{self.name}.{n}", -g, received.count) for n, g in view.gradients.items()}
        return Contribution(directions, torch.ones_like(view.samples))

    def owned_values(self, received: Received) -> dict[str, Tensor]:
        """The common values."""
        return dict(received.tensors)

    def receive(self, state: State, view: View, received: Received) -> Update:
        """Continue from the common values."""
        return Update(self.owned_values(received), state=state)


def _with_coin_flips(what: str, direction: Tensor, version: Tensor) -> Tensor:
    """The direction, or a coin flip where the gradient is 0."""
    return torch.where(direction == 0, coin_flips(what, version, direction), direction)
