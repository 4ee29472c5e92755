"""What an exchange is: one thing learners trade, as pure functions written for one learner.

An exchange says what a learner puts up, on which channel it travels, and what the answer does to the learner's own
training. The engine decides whether to call it in a loop or to `vmap` it over thousands, so an exchange never branches
on values, only on settings; randomness and state are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from consilience.task import Task
from consilience.wire.schema import Channel

State = dict[str, Tensor]
"""An exchange's own memory at one learner: named tensors, in and out again."""

CUT = "cut"
"""Among named layers, the one where the first part of a model in two ends, whatever it is called there."""
Start = Literal["common", "different"]
Scope = Literal["everybody", "oneself"]


@dataclass(frozen=True)
class View:
    """What an exchange may see of its learner.

    In training the rows are a mini-batch; after training they are all of the learner's samples, seen in evaluation
    mode, in one pass that every exchange shares.
    """

    task: Task
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    inputs: Tensor  # (rows, *input)
    features: Tensor  # (rows, width)
    logits: Tensor  # (rows, classes)
    targets: Tensor  # (rows,)
    valid: Tensor  # (rows,) 1 where the row is a sample, 0 where it only fills up the array
    classify: Callable[[Tensor], Tensor]  # the learner's own classifier on foreign features
    samples: Tensor  # () how many samples the learner has
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # of the layers the exchange named
    modules: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)  # of the exchange's own
    gradients: Mapping[str, Tensor] = field(default_factory=dict)  # of the parts it owns, mean over the round's batches
    draws: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # (draws asked for, rows) uniform in [0, 1)
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """(rows,) where the rows of a mini-batch lie among the learner's samples."""
    source: Tensor = field(default_factory=lambda: torch.empty(0))
    """(rows, *input) a mini-batch as the data has it, before the objective made views of it."""
    encode: Callable[[Mapping[str, Tensor], Tensor], Tensor] = lambda parameters, inputs: inputs
    """Features of inputs, (rows, width), by other parameters than the learner's own; its statistics stay."""


@dataclass(frozen=True)
class Received:
    """The newest answer a learner has.

    Standing mean: the mean, with counts by row. Moving mean: the common values, and how often they have moved. Pool:
    the entries drawn, (draw, ...). Before the first answer: zeros with count 0, or the common values at the start.
    """

    tensors: Mapping[str, Tensor]
    count: Tensor
    fresh: Tensor  # () where answers are received: true where this one is new


@dataclass(frozen=True)
class Contribution:
    """What a learner puts up, and how much it weighs: one number, or one for each row."""

    tensors: Mapping[str, Tensor]
    weight: Tensor


@dataclass(frozen=True)
class Update:
    """What an answer changes in the learner: parameters and buffers by name, and the exchange's state."""

    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    state: State = field(default_factory=dict)


class Exchange:
    """The hooks, each with a default that does nothing.

    Subclasses are frozen dataclasses. Class attributes say what the engine should prepare.
    """

    name: str = "exchange"
    """Of the exchange, its channel and its loss term: two of one kind in a role have two names."""
    uploads_before_training: ClassVar[bool] = False
    """Whether the untrained model's contribution is put up before the first round."""
    needs_representations: ClassVar[bool] = True
    """Whether `contribute` looks at samples: where no exchange does, the pass over them is left out."""
    layers: tuple[str, ...] = ()
    """Modules of the model whose outputs the view should carry."""
    start: Start = "different"
    """Whether learners begin with the federation's common weights or each with its own."""
    every: int = 1
    """Take part in every `every`-th round."""

    @property
    def owned_part(self) -> str | None:
        """The part of the model that moves by this exchange alone and not by the local optimizer."""
        return None

    @property
    def weight(self) -> float:
        """How much the penalty counts in the learner's loss."""
        return 0.0

    @property
    def batch_draws(self) -> int:
        """Uniform numbers the penalty wants for each row of a batch."""
        return 0

    @property
    def sample_draws(self) -> int:
        """Uniform numbers `contribute` and `open` want for each sample."""
        return 0

    def channel(self, task: Task) -> Channel:
        """The channel this exchange travels on, with shapes, bounds and encodings."""
        raise NotImplementedError

    def for_federation(self, learners: int) -> Self:
        """The exchange in a federation of so many learners."""
        return self

    def describe_upload(self) -> str:
        """In a few words: what leaves the learner."""
        raise NotImplementedError

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Extra modules that the local optimizer trains beside the model."""
        return {}

    def init_state(self, view: View) -> State:
        """The learner's own state for this exchange, before anything has happened."""
        return {}

    def common_values(self, view: View) -> dict[str, Tensor]:
        """The common values a moving mean starts from, seen in the federation's common model."""
        return {}

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """A scalar for every mini-batch; the engine adds `weight` times it to the loss."""
        return view.logits.new_zeros(())

    def metrics(self, task: Task, penalty: np.ndarray) -> dict[str, np.ndarray]:
        """What else a round's mean penalty tells, for several learners at once."""
        return {}

    def on_round_start(self, state: State, view: View, received: Received) -> State:
        """State before local training begins, seen in one pass over all samples."""
        return state

    def on_batch(self, state: State, view: View) -> State:
        """State that moves with every mini-batch, before its penalty is asked for."""
        return state

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The tensors to put up after local training, and their weight; an exchange without it only listens."""
        raise NotImplementedError

    def receive(self, state: State, view: View, received: Received) -> Update:
        """What a new answer changes; it is taken only where the answer is fresh."""
        return Update(state=state)

    @property
    def contributes(self) -> bool:
        """Whether there is anything to put up: engines do not ask where there is not."""
        return type(self).contribute is not Exchange.contribute

    @property
    def has_round_start(self) -> bool:
        """Whether `open` does anything: else the pass before local training is left out."""
        return type(self).on_round_start is not Exchange.on_round_start

    @property
    def has_batch_hook(self) -> bool:
        """Whether `step` does anything."""
        return type(self).on_batch is not Exchange.on_batch

    @property
    def changes_model(self) -> bool:
        """Whether `receive` does anything: engines skip it where it does not."""
        return type(self).receive is not Exchange.receive
