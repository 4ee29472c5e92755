"""Gradients: a part of the model that all learners share and that only votes move (Ma et al. 2020).

Each learner uploads one bit per weight, whether it should grow or shrink; the majority decides, one bit back, and the
weight moves by a step of fixed length: w <- w - delta x sign(sum of signs), equation 9 of the paper. All votes count
the same. A tie, and a gradient of exactly 0, is decided by a keyed coin that is the same for all.

The paper can be read in two ways. inner="round", after equation 9: a vote is the sign of the mean gradient of a round's
batches, and the part moves by delta once per round. inner="batch", Algorithm 1 to the letter: a learner moves the part
by delta x the last vote before each of its batches, and its own vote is the sign of its last batch's gradient. Then the
common values move by batches x delta at an aggregation, and a learner applies this move in equal parts:

    before batch i of n:  w = C - (1 - i / n) x batches x delta x vote      C: the common values, with the last vote

A learner with n = batches moves by delta before each batch, as Algorithm 1 says. One with more or fewer batches takes
shorter or longer steps, so that all learners are at C after their last batch, where their next votes are cast.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from consilience.channels import LAST_MOVE
from consilience.config.schedules import constant_number
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Contribution, Received, Start, State, Update, View
from consilience.exchanges.owning import OwningExchange
from consilience.exchanges.weights import check_part, covered_parameters
from consilience.randomness import coin_flips
from consilience.task import Task
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Bit

VOTE = Bit(unit=1.0)
Inner = Literal["round", "batch"]


@dataclass(frozen=True)
class Gradients(OwningExchange):
    """Move a part of the model by all learners' gradients of it, the means over a round's batches.

    part: what this exchange moves instead of the local optimizer: a part of a cut model, a module's name or a glob.
    delta: how far a weight moves in a round. vote: whether signs are counted, one bit each way, unweighted; else the
    mean gradient, weighted by sample counts, times delta. max_staleness: a vote about common values that have moved
    more often since does not count. inner: whether the part moves once per round or before every batch; batches: how
    many steps of delta a round then has, 0 in a simulation for as many as a learner of mean size has batches.
    """

    name: str = field(default="gradients", kw_only=True)
    varies: ClassVar[tuple[str, ...]] = ()  # delta is part of the encoding, which all members share
    mismatch_hint: ClassVar[str] = (
        "delta must be the same for all: it is a setting of the method and not of a group. A part is shared this way "
        "among equal models only"
    )
    needs_representations: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False
    start: Start = field(default="common", init=False)
    part: str = "server"
    delta: float = 1e-3
    vote: bool = True
    every: int = 1
    max_staleness: int = 8
    inner: Inner = "round"
    batches: int = 0

    def __post_init__(self) -> None:
        check_part(self.part)
        constant_number("delta", self.delta, low=1e-12)
        check_integer("every", self.every)
        check_integer("max_staleness", self.max_staleness, low=0)
        check_choice("inner", self.inner, get_args(Inner))
        check_integer("batches", self.batches, low=0)
        if self.batches and self.inner != "batch":
            raise ConfigurationError(
                f"batches is {self.batches} and inner is {self.inner!r}: the part moves once per round; leave batches "
                f"out, or set inner='batch'"
            )
        if self.inner == "batch" and not self.vote:
            raise ConfigurationError("inner is 'batch' and vote is false: steps of fixed length need votes; set vote")

    @property
    def owned_part(self) -> str:
        """The part that only this exchange moves."""
        return self.part

    @property
    def moves_before_batches(self) -> bool:
        """With inner="batch"."""
        return self.inner == "batch"

    def for_batches(self, batches: int) -> Self:
        """A round has as many steps as the mean learner has batches, unless their number is set."""
        return replace(self, batches=self.batches or batches) if self.moves_before_batches else self

    def channel(self, task: Task) -> schema.Mean:
        """A moving mean with one tensor for each parameter of the part."""
        if self.moves_before_batches and not self.batches:
            raise ConfigurationError(
                f"{self.name}: inner is 'batch', and members over a relay do not know how many batches the others "
                f"have; set how many steps of delta a round has, such as two-stage:inner=batch:batches=60"
            )
        steps = self.batches if self.moves_before_batches else 1
        up, down = (VOTE, Bit(unit=steps * self.delta)) if self.vote else (FLOAT32, FLOAT32)
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

    def values_before_batch(self, received: Received, progress: Tensor) -> dict[str, Tensor]:
        """The part on its way to the common values, a step further before every batch."""
        moving = {n: t for n, t in received.tensors.items() if not n.startswith(LAST_MOVE)}
        return {n: common - (1 - progress) * received.tensors[f"{LAST_MOVE}{n}"] for n, common in moving.items()}

    def owned_values(self, received: Received) -> dict[str, Tensor]:
        """The common values; with inner="batch" those before the last vote, which moves them in the next round."""
        if self.moves_before_batches:
            return self.values_before_batch(received, torch.zeros_like(received.count))
        return super().owned_values(received)

    def receive(self, state: State, view: View, received: Received) -> Update:
        """Continue from the newest values."""
        return Update(self.owned_values(received), state=state)


def _with_coin_flips(what: str, direction: Tensor, version: Tensor) -> Tensor:
    """The direction, or a coin flip where the gradient is 0."""
    return torch.where(direction == 0, coin_flips(what, version, direction), direction)
