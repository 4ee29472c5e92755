"""The interface of an exchange: one thing learners trade, as pure functions written for one learner.

An exchange says what a learner uploads, on which channel it travels, and what the download does to the learner's own
training. The engine calls it in a loop or with `vmap` over thousands of learners, so an exchange never branches on
values, only on settings; randomness and state are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from consilience.config.schedules import Rate, Schedule
from consilience.errors import ConfigurationError, UnknownName
from consilience.task import Task, TaskKind
from consilience.wire.schema import Channel

State = dict[str, Tensor]
"""The state of an exchange at one learner: named tensors, passed in and returned."""

CUT = "cut"
"""Among named layers, the one where the first part of a model in two parts ends."""
Start = Literal["common", "different"]
Scope = Literal["everybody", "oneself"]


@dataclass(frozen=True)
class BatchView:
    """What an exchange may see of a mini-batch in training, in addition to its rows."""

    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """(rows,) positions of the rows among the learner's samples."""
    source: Tensor = field(default_factory=lambda: torch.empty(0))
    """(rows, *input) the mini-batch as the data has it, before the objective made views of it."""
    encode: Callable[[Mapping[str, Tensor], Tensor], Tensor] = lambda parameters, inputs: inputs
    """Features of inputs, (rows, width), by other parameters than the learner's own; buffers do not change."""


@dataclass(frozen=True)
class View:
    """What an exchange may see of its learner.

    In training the rows are a mini-batch. Before and after local training they are all of the learner's samples, in
    evaluation mode, from one pass that all exchanges share. Hooks that see no data have no rows.
    """

    task: Task
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    inputs: Tensor  # (rows, *input)
    features: Tensor  # (rows, width)
    logits: Tensor  # (rows, classes)
    targets: Tensor  # (rows,) classes; (rows, labels) of 0 and 1; (rows,) standardized numbers
    valid: Tensor  # (rows,) 1 where the row is a sample, 0 where it is padding or must not be shared
    classify: Callable[[Tensor], Tensor]  # the learner's own classifier, for features of other learners
    samples: Tensor  # () how many samples the learner has
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # of the layers named in the exchange's `layers`
    modules: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)  # those the exchange made
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    """Of the owned part: the mean over the round's batches, or the last batch's (`OwningExchange`)."""
    draws: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # (numbers asked for, rows) uniform in [0, 1)
    batch: BatchView = field(default_factory=BatchView)
    objective_state: Mapping[str, Tensor] = field(default_factory=dict)  # the objective's own, in its views
    own_model: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    """Features and logits of inputs by the model that never leaves the learner, in views of an objective."""


@dataclass(frozen=True)
class Received:
    """The newest answer of the channel that a learner has.

    Standing mean: the mean, with counts by row. Moving mean: the common values, and how often they have moved. Pool:
    the entries drawn, (draw, ...). Before the first answer: zeros with count 0, or the common values at the start.
    """

    tensors: Mapping[str, Tensor]
    count: Tensor
    fresh: Tensor  # () true where this answer is new, in `receive`


@dataclass(frozen=True)
class Contribution:
    """What a learner uploads, and its weight in the mean: one number, or one for each row."""

    tensors: Mapping[str, Tensor]
    weight: Tensor


@dataclass(frozen=True)
class Update:
    """What a download changes in the learner: parameters and buffers by name, and the exchange's state."""

    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    state: State = field(default_factory=dict)


class Exchange:
    """The hooks of an exchange, each with a default that does nothing, and attributes that say what the exchange is.

    Subclasses are frozen dataclasses; their fields are their settings.
    """

    name: str = "exchange"
    """Name of the exchange, its channel and its loss term: two exchanges of one role have different names."""
    varies: ClassVar[tuple[str, ...]] = ("weight",)
    """Fields, all numbers, that may differ between learners of one cohort and may be schedules; only names of fields
    count. Learners that differ in another field are separate cohorts, and a setting of a sweep takes another run."""
    feature_tensors: ClassVar[tuple[str, ...]] = ()
    """Tensors of its channel whose last dimension is the feature width d' of the model."""
    mismatch_hint: ClassVar[str] = "Give all models one feature width d' (width = ...), or share logits instead"
    """What to do where learners' models make different channels of it; the end of an error message."""
    uploads_before_training: ClassVar[bool] = False
    """Whether the untrained model's contribution is uploaded before the first round."""
    needs_representations: ClassVar[bool] = True
    """Whether `contribute` uses the rows of its view: where no exchange does, the pass over all samples is skipped."""
    needs_batches: ClassVar[bool] = True
    """Whether `penalty` or `on_batch` uses the rows of its view: without such an exchange nobody reads a mini-batch."""
    allows_partners: ClassVar[bool] = False
    """Whether uploads of some learners can stand for those of all: learners may then choose partners, or exchange with
    their neighbors in a graph, each with an answer of its own."""
    kind_hint: ClassVar[str] = ""
    """What would make it serve other kinds of tasks; the end of the sentence that says which it serves."""
    means_of: ClassVar[Literal["features", "logits"] | None] = None
    """What its uploads are means of by class, by which learners can be compared; None where they are not."""
    layers: tuple[str, ...] = ()
    """Modules of the model whose outputs the view carries."""
    start: Start = "different"
    """Whether learners start with the federation's common weights or each with its own."""
    every: int = 1
    """Take part in every `every`-th round."""
    scope: Scope = "everybody"
    """With "oneself" uploads stay with the learner, who receives its own: nothing travels."""

    @property
    def owned_part(self) -> str | None:
        """The part of the model that only this exchange changes, and not the local optimizer."""
        return None

    @property
    def weight(self) -> Rate:
        """The weight of the penalty in the learner's loss."""
        return 0.0

    @property
    def kinds(self) -> tuple[TaskKind, ...]:
        """The kinds of tasks that it serves with its settings."""
        return ("single-label",)

    @property
    def batch_draws(self) -> int:
        """How many uniform numbers `penalty` and `on_batch` need for each row of a mini-batch."""
        return 0

    @property
    def sample_draws(self) -> int:
        """How many uniform numbers `contribute` and `on_round_start` need for each sample."""
        return 0

    def channel(self, task: Task) -> Channel:
        """The channel it travels on, with shapes, bounds and encodings."""
        raise NotImplementedError

    def for_federation(self, learners: int) -> Self:
        """The exchange in a federation with this number of learners."""
        return self

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        raise NotImplementedError

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Extra modules that the local optimizer trains together with the model."""
        return {}

    def init_state(self, view: View) -> State:
        """The exchange's state at a learner, before the first round."""
        return {}

    def common_values(self, view: View) -> dict[str, Tensor]:
        """The values a moving mean starts from; the view is of the federation's common model."""
        return {}

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """A scalar for every mini-batch; the engine adds `weight` times it to the loss."""
        return view.logits.new_zeros(())

    def metrics(
        self, task: Task, penalty: np.ndarray, received: np.ndarray, samples: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Further metrics of several learners' local training, each (learners,).

        penalty: (learners,) the mean over the batches of the round. received: (learners, ...) the counts of the answers
        they trained with. samples: (learners, classes) how many samples of each class they trained on.
        """
        return {}

    def on_round_start(self, state: State, view: View, received: Received) -> State:
        """The state at the start of a round, before local training; the view is one pass over all samples."""
        return state

    def on_batch(self, state: State, view: View) -> State:
        """The state at a mini-batch, before its penalty."""
        return state

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The tensors to upload after local training, and their weight; an exchange without it only downloads."""
        raise NotImplementedError

    def receive(self, state: State, view: View, received: Received) -> Update:
        """What a new download changes; the engine applies it only where the answer is fresh."""
        return Update(state=state)

    @property
    def has_round_start(self) -> bool:
        """Whether `on_round_start` does anything: else the pass before local training is skipped."""
        return type(self).on_round_start is not Exchange.on_round_start

    @property
    def has_batch_hook(self) -> bool:
        """Whether `on_batch` does anything."""
        return type(self).on_batch is not Exchange.on_batch

    @property
    def changes_model(self) -> bool:
        """Whether `receive` does anything."""
        return type(self).receive is not Exchange.receive


def varying_fields(exchange: Exchange) -> tuple[str, ...]:
    """The fields of an exchange that may differ between learners; refuses a schedule in any other field."""
    known = {f.name: getattr(exchange, f.name) for f in fields(exchange)}  # type: ignore[arg-type]
    for name in exchange.varies if exchange.varies != Exchange.varies else ():
        if name not in known:
            raise UnknownName("field", name, known, of=f"`varies` of exchange {exchange.name!r}")
    varying = tuple(name for name in exchange.varies if name in known)
    for name, value in known.items():
        if isinstance(value, Schedule) and name not in varying:
            raise ConfigurationError(
                f"{exchange.name}: {name} is {value}, and only {' and '.join(varying) or 'none of its fields'} may "
                f"change with the rounds; give one number, or name the field in `varies` of {type(exchange).__name__}"
            )
    return varying


def fixed_fields(exchange: Exchange) -> dict[str, Any]:
    """The other fields: learners of one cohort have the same values."""
    varying = varying_fields(exchange)
    return {f.name: getattr(exchange, f.name) for f in fields(exchange) if f.name not in varying}  # type: ignore[arg-type]
