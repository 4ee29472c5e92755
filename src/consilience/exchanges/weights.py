"""Weights: the change of the common weights, averaged (FedAvg, McMahan et al. 2017; FedProx, Li et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from consilience.config.schedules import Rate, constant_number, number_or_schedule
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Contribution, Received, Start, State, Update, View
from consilience.exchanges.parameters import ParameterExchange
from consilience.kinds import ALL_KINDS
from consilience.task import PARTS, TRAINED, Task, TaskKind
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT16, FLOAT32, Encoding

Buffers = Literal["share", "local"]
_RECENT = 0.25
"""How much the newest interval between two downloads counts in a learner's mean interval."""
_WRAP = 2**20
"""Versions are compared modulo this number, which float32 holds exactly: a restored relay has very large ones."""
_LISTED = 20
"""Names of parameters that an error lists."""
_FAR = 256
"""Versions that are further apart are no absence: the first download, or the relay was restored from a backup."""


@dataclass(frozen=True)
class Weights(ParameterExchange):
    """Move a common model by the mean change of all learners' models, weighted by sample counts.

    part: what is shared: "trained" for all that is not frozen, a module's name or a glob; what is frozen never is.
    prox: how strongly training is held near the common weights.
    buffers: BatchNorm's running statistics travel as means ("share") or stay private ("local"). start: whether learners
    start with the common weights; a learner that starts elsewhere measures its first change from the common weights, so
    the mean of changes is still the mean of weights. up, down: encodings; coarse ones keep a residual. step: how far
    the common weights move along the mean change; 1 is to the mean of the weights, more is beyond it. A learner that
    misses some of their moves goes less far beyond it: few and old changes together are no direction to follow further.
    """

    name: str = field(default="weights", kw_only=True)
    varies: ClassVar[tuple[str, ...]] = ("prox",)
    mismatch_hint: ClassVar[str] = (
        "Weights travel between equal architectures only; share prototypes, logits or similarities (flesd with "
        "distill = 'learner') instead"
    )
    allows_partners: ClassVar[bool] = True
    kinds: ClassVar[tuple[TaskKind, ...]] = ALL_KINDS
    part: str = TRAINED
    prox: Rate = 0.0
    every: int = 1
    buffers: Buffers = "share"
    start: Start = "common"
    up: Encoding = FLOAT32
    down: Encoding = FLOAT32
    step: float = 1.0
    max_staleness: int = 8

    def __post_init__(self) -> None:
        check_part(self.part)
        number_or_schedule("prox", self.prox)
        check_integer("every", self.every)
        constant_number("step", self.step, low=1e-12)
        check_integer("max_staleness", self.max_staleness, low=0)
        check_choice("buffers", self.buffers, get_args(Buffers))
        check_choice("start", self.start, get_args(Start))

    @property
    def weight(self) -> Rate:
        """How strongly training is held near the common weights."""
        return self.prox

    def channel(self, task: Task) -> schema.Mean:
        """A moving mean with one tensor for each parameter and floating buffer of the part."""
        names = covered_parameters(self.name, self.part, task)
        tensors = {n: schema.Tensor(task.parameters[n], self.up, self.down) for n in names}
        for name in self._buffers(task, task.buffers):
            tensors[name] = schema.Tensor(task.buffers[name], _at_least_16_bits(self.up), _at_least_16_bits(self.down))
        return schema.Mean(self.name, tensors, moving=True, max_staleness=self.max_staleness)

    def _buffers(self, task: Task, names: Iterable[str]) -> list[str]:
        return task.covered(self.part, names) if self.buffers == "share" else []

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        what = "every weight" if self.part in (TRAINED, "*") else f"every weight of {self.part}"
        return f"the change of {what}" + (", one bit each" if self.up.bits == 1 else "")

    def _shared(self, view: View) -> dict[str, Tensor]:
        held = {n: view.parameters[n] for n in view.task.covered(self.part, view.parameters)}
        return held | {n: view.buffers[n] for n in self._buffers(view.task, view.buffers)}

    def common_values(self, view: View) -> dict[str, Tensor]:
        """The common model's own weights."""
        return self._shared(view)

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Half the squared distance to the common weights."""
        names = view.task.covered(self.part, view.parameters)
        distances = [(view.parameters[n] - received.tensors[n]).square().sum() for n in names]
        return torch.stack(distances).sum() / 2

    def init_state(self, view: View) -> State:
        """Which version of the common weights the learner has, and how many versions apart its downloads are."""
        if self.step == 1:
            return {}
        number = torch.zeros((), dtype=torch.float32, device=view.samples.device)
        return {"version": number, "interval": number + 1}

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The change since the common weights, `step` times as large, weighted by the number of samples.

        Of a learner that has every n-th version only, the part beyond the change itself is divided by n. Running
        statistics are means, and are not moved beyond them.
        """
        changes = {n: x - received.tensors[n] for n, x in self._shared(view).items()}
        if self.step != 1:
            beyond = state["interval"] if self.step > 1 else torch.ones_like(state["interval"])
            step = 1 + (self.step - 1) / beyond
            changes |= {n: changes[n] * step.to(changes[n].dtype) for n in changes if n in view.parameters}
        return Contribution(changes, view.samples)

    def receive(self, state: State, view: View, received: Received) -> Update:
        """Continue from the common weights."""
        if self.step != 1:
            version, interval = (received.count % _WRAP).to(state["version"].dtype), state["interval"]
            missed = (version - state["version"]) % _WRAP
            known = (missed > 0) & (missed < _FAR) & (state["version"] > 0)  # the first download is no absence
            latest = torch.where(known, missed, interval)
            state = {"version": version, "interval": interval + _RECENT * (latest - interval)}
        parameters = {n: received.tensors[n] for n in view.task.covered(self.part, view.parameters)}
        buffers = {n: received.tensors[n] for n in self._buffers(view.task, view.buffers)}
        return Update(parameters, buffers, state)


def check_part(part: str) -> None:
    """Refuse what is no name of a part."""
    if not isinstance(part, str) or not part:
        raise ConfigurationError(
            f"part is {part!r}; it must be the name of a part or a module, such as 'server' or '3', or a glob"
        )


def covered_parameters(exchange: str, part: str, task: Task) -> list[str]:
    """The model's parameters that a part covers; refuses one that covers nothing that is trained."""
    names = task.covered(part, task.parameters)
    if not names and (still := replace(task, frozen=frozenset()).covered(part, task.parameters)):
        some = bool(task.covered(TRAINED, task.parameters))
        others = f"name a part of what is trained: {_listed(task)}" if some else "train adapters beside them"
        raise ConfigurationError(
            f"{exchange}: part {part!r} covers {len(still)} parameters of {task.model}, such as {still[0]!r}, and all "
            f"are frozen (requires_grad=False): they never travel; unfreeze some, or {others}"
        )
    if not names and part in PARTS and not task.parts:
        raise ConfigurationError(
            f"{exchange}: part {part!r} needs a model in two parts, and {task.model} is not cut; use a model that is "
            f"cut after a layer, cut(model, at=...), or name another part"
        )
    if not names:
        parts = f"its parts are {', '.join(task.parts)} and " if task.parts else ""
        what = "its trained parameters are" if task.frozen else "its parameters are"
        raise ConfigurationError(
            f"{exchange}: part {part!r} covers nothing of {task.model}; {parts}{what} {_listed(task)}; name a module, "
            f"or a glob such as '*lora_*', or leave part out for all that is trained"
        )
    return names


def _listed(task: Task) -> str:
    """The first names of the trained parameters of a model."""
    names = task.covered(TRAINED, task.parameters)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more if names else "none is"


def _at_least_16_bits(encoding: Encoding) -> Encoding:
    """The encoding of running statistics: at least sixteen bits, since they are means and not changes."""
    return encoding if encoding.bits > 8 else FLOAT16
