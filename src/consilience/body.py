"""A model and everything a learner trains beside it, as flat vectors that lie in a row.

A learner's whole state is a row: parameters, buffers and optimiser state end to end, and small named tensors of the
exchanges. A body wears one row after the other, so that a thousand learners of one architecture need one module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from consilience import schema
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges.base import Exchange
from consilience.exchanges.weights import part_of
from consilience.layout import Layout
from consilience.method import Role
from consilience.models import SplitModel, as_split
from consilience.objectives import Objective
from consilience.optimisers import Optimiser
from consilience.task import Task

Row = dict[str, Tensor]
"""The state of one learner, by name; views into the stacked state of its cohort."""


@dataclass(frozen=True)
class Blueprint:
    """Everything that learners of one cohort have in common."""

    build: Callable[[], nn.Module]
    role: Role
    optimiser: Optimiser
    shape: tuple[int, ...]
    model: str = "model"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


class Body:
    """The modules of one architecture; `wear` puts them into one learner's state."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint, self.role, self.optimiser = blueprint, blueprint.role, blueprint.optimiser
        self.dtype, self.device = blueprint.dtype, torch.device(blueprint.device)
        with torch.random.fork_rng(devices=[]):  # weights come later, with a row: leave the caller's generator alone
            self.model: SplitModel = as_split(blueprint.build()).to(self.device, self.dtype)
        self.task = _task(self.model, blueprint)
        self.channels = {e.name: e.channel(self.task) for e in self.role.exchanges}
        _refuse_overlap(self.channels)
        self.owners: tuple[Objective | Exchange, ...] = (self.role.objective, *self.exchanges)
        self.modules = {o.name: nn.ModuleDict(o.modules(self.task)).to(self.device, self.dtype) for o in self.owners}
        self._name_tensors()
        self._outputs: dict[str, Tensor] = {}
        for layer in {layer for owner in self.owners for layer in owner.layers}:
            self._listen(layer)
        self.trained = ~self.parameters.mask(self._owned()).to(self.device)
        self.all_trained = bool(self.trained.all())

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of the learner's role."""
        return self.role.exchanges

    def _name_tensors(self) -> None:
        """Lay out parameters (the model's, then the exchanges' modules'), floating buffers, and whole numbers."""
        self._parameters, buffers = _named(self.model, self.modules)
        self.model_parameters = {n: self._parameters[n] for n in self.task.parameters}
        self._buffers = {k: b for k, b in buffers.items() if b.is_floating_point()}
        self.model_buffers = {n: self._buffers[n] for n in self.task.buffers}
        self._worn: dict[str, Mapping[str, Tensor]] = {"parameters": self._parameters, "buffers": self._buffers}
        self._worn |= _by_type({k: b for k, b in buffers.items() if not b.is_floating_point()})
        self._layouts = {
            key: Layout({k: tuple(t.shape) for k, t in named.items()}, channels_last=self.device.type == "cpu")
            for key, named in self._worn.items()
        }
        self.parameters, self.buffers = self._layouts["parameters"], self._layouts["buffers"]
        self.gradient = torch.zeros(self.parameters.size, dtype=self.dtype, device=self.device)
        self.summed = torch.zeros_like(self.gradient)  # over the round's batches, where an exchange owns a part
        gradients = self.parameters.views(self.gradient)
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]

    def _owned(self) -> set[str]:
        owned: set[str] = set()
        for e in self.exchanges:
            names = part_of(e.owns, self.task.parameters) if e.owns is not None else []
            if e.owns is not None and not names:
                raise ConfigurationError(
                    f"{e.name}: the part it owns, {e.owns!r}, covers nothing of {self.task.model}; its parameters are "
                    f"{', '.join(self.task.parameters)}"
                )
            owned |= set(names)
        return owned

    def _listen(self, layer: str) -> None:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._outputs[layer] = output

        modules = dict(self.model.named_modules())
        if layer not in modules:
            raise UnknownName(f"layer of {self.task.model}", layer, (name for name in modules if name))
        modules[layer].register_forward_hook(keep)

    def initial(self, seed: int) -> Row:
        """A new learner's row, with weights drawn from this seed; `states` completes it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = as_split(self.blueprint.build())
            modules = {o.name: nn.ModuleDict(o.modules(self.task)) for o in self.owners}
        parameters, buffers = _named(model, modules)
        if any(parameters[name] is own for name, own in self._parameters.items()):
            raise ConfigurationError(
                f"{self.task.model}: the function that builds it gave the same module twice; it must make a new one "
                f"each time it is called, for every learner needs weights of its own"
            )
        row = {
            "parameters": self.parameters.flat(parameters).detach().to(self.device, self.dtype),
            "buffers": self.buffers.flat(buffers).to(self.device, self.dtype),
            "step": torch.zeros((), dtype=torch.int64),
        }
        row |= {k: self._layouts[k].flat(buffers).to(self.device) for k in self._worn if k not in row}
        row |= {f"optimiser.{slot}": torch.zeros_like(row["parameters"]) for slot in self.optimiser.slots}
        return row | self._errors()

    def _errors(self) -> Row:
        """What each encoding has rounded away so far: nothing."""
        return {
            f"error.{name}.{k}": torch.zeros(t.shape, dtype=self.dtype, device=self.device)
            for name, channel in self.channels.items()
            for k, t in channel.tensors.items()
            if keeps_error(channel, t)
        }

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Put these values into the row that is worn, by parameter or buffer name."""
        for name, value in tensors.items():
            (self._parameters[name].data if name in self._parameters else self._buffers[name]).copy_(value)

    def wear(self, row: Row) -> None:
        """Step into one learner's state: the module's tensors become views into its row."""
        for key, named in self._worn.items():
            views = self._layouts[key].views(row[key])
            for name, tensor in named.items():
                tensor.data = views[name]
        self.row = row

    def _mode(self, training: bool) -> None:
        for module in (self.model, *self.modules.values()):
            module.train(training)


def keeps_error(channel: schema.Channel, tensor: schema.Tensor) -> bool:
    """Whether a learner remembers what the encoding rounded away: for coarse encodings of changes, not of means."""
    return isinstance(channel, schema.Mean) and channel.moving and tensor.up.feedback


def _refuse_overlap(channels: Mapping[str, schema.Channel]) -> None:
    """Two moving means cannot both move one tensor of the model."""
    moved: dict[str, str] = {}
    for name, channel in channels.items():
        for tensor in channel.tensors if isinstance(channel, schema.Mean) and channel.moving else ():
            if tensor in moved:
                raise ConfigurationError(f"{moved[tensor]!r} and {name!r} both share {tensor!r}; give them other parts")
            moved[tensor] = name


def _named(model: nn.Module, modules: Mapping[str, nn.Module]) -> tuple[dict[str, nn.Parameter], dict[str, Tensor]]:
    """Parameters and buffers by name: the model's, then those of the objective's and exchanges' own modules."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for exchange, extra in modules.items():
        parameters |= {f"{exchange}/{k}": p for k, p in extra.named_parameters()}
        buffers |= {f"{exchange}/{k}": b for k, b in extra.named_buffers()}
    return parameters, buffers


def _by_type(named: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Buffers that are no real numbers, by the part of the row they lie in: a mask stays a mask."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, buffer in named.items():
        kind = "" if buffer.dtype == torch.int64 else f".{str(buffer.dtype).removeprefix('torch.')}"
        groups.setdefault(f"counters{kind}", {})[name] = buffer
    return groups


def _task(model: SplitModel, blueprint: Blueprint) -> Task:
    buffers = {k: tuple(b.shape) for k, b in model.named_buffers() if b.is_floating_point()}
    parameters = {k: tuple(p.shape) for k, p in model.named_parameters()}
    return Task(model.classes, model.width, blueprint.shape, model.bound, parameters, buffers, blueprint.model)
