"""A model and everything a learner trains beside it, as flat vectors that lie in a row.

A learner's whole state is a row: parameters, buffers and optimizer state end to end, and small named tensors of the
exchanges. A body wears one row after the other, so that a thousand learners of one architecture need one module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from consilience.config.schedules import highest_value, value_at
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges.base import CUT, Contribution, Exchange
from consilience.exchanges.weights import covering
from consilience.learner.layout import Layout
from consilience.method import Role
from consilience.models import SplitModel, to_split_model
from consilience.models.cut import cut_shape
from consilience.objectives import Objective
from consilience.optimizers import Optimizer
from consilience.task import DEVICE, Public, Task
from consilience.wire import schema

OPTIMIZER = "optimizer"
"""Where settings are named by whose they are, the optimizer's."""
Thing = TypeVar("Thing", Exchange, Optimizer)
Row = dict[str, Tensor]
"""The state of one learner, by name; views into the stacked state of its cohort."""


@dataclass(frozen=True)
class LearnerSpec:
    """Everything that learners of one cohort have in common."""

    build: Callable[[], nn.Module]
    role: Role
    optimizer: Optimizer
    shape: tuple[int, ...]
    model: str = "model"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    half: bool = False  # run the model in bfloat16; weights, losses and what is shared stay as they are
    varied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings of which every learner has its own value: fields by exchange, or of the "optimizer"."""
    scaling: tuple[float, float] = (0.0, 1.0)  # mean and standard deviation of the inputs before they were scaled
    public: Public | None = None  # where its samples are the public set
    symbols: int = 0  # how many characters there are, where inputs are codes of characters


class Body:
    """The modules of one architecture; `wear` puts them into one learner's state."""

    def __init__(self, spec: LearnerSpec) -> None:
        self.spec, self.role, self.optimizer = spec, spec.role, spec.optimizer
        self.exchanges = self.role.exchanges
        self.uploading, self.downloading = self.role.uploading, self.role.downloading
        weighed = {e.name for e in self.exchanges if highest_value(e.weight)} | set(spec.varied) - {OPTIMIZER}
        self.penalized = weighed & self.downloading
        """Names of the exchanges whose penalty may count for something."""
        self.dtype, self.device = spec.dtype, torch.device(spec.device)
        with torch.random.fork_rng(devices=[]):  # weights come later, with a row: leave the caller's generator alone
            self.model: SplitModel = to_split_model(spec.build()).to(self.device, self.dtype)
            self.task = _task(self.model, spec)
        self.channels = {e.name: e.channel(self.task) for e in self.role.exchanges}
        moving = {name for name, channel in self.channels.items() if channel.moves}
        self.receiving = self.downloading | self.uploading & moving
        """Names of the exchanges whose answers it is sent: a change is measured from the newest common values."""
        _refuse_overlap(self.channels)
        self.owners: tuple[Objective | Exchange, ...] = (self.role.objective, *self.exchanges)
        self.modules = {o.name: nn.ModuleDict(o.modules(self.task)).to(self.device, self.dtype) for o in self.owners}
        self._name_tensors()
        self._outputs: dict[str, Tensor] = {}
        for layer in {layer for owner in self.owners for layer in owner.layers}:
            self._listen(layer)
        self.frozen = {name for name, parameter in self._parameters.items() if not parameter.requires_grad}
        owned = self._owned()
        _refuse_frozen(owned & self.frozen, self.task)
        self.trained = ~self.parameters.mask(owned | self.frozen).to(self.device)
        self.all_trained = bool(self.trained.all())

    def _name_tensors(self) -> None:
        """Lay out parameters (the model's, then the exchanges' modules'), floating buffers, and whole numbers."""
        own, buffers = _named(self.model, self.modules)
        self._parameters: dict[str, Tensor] = dict(own)
        self._holders = _holders((self.model, *self.modules.values()), own | buffers)
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
            owned |= set(covering(e.name, e.owned_part, self.task)) if e.owned_part is not None else set()
        return owned

    def _listen(self, layer: str) -> None:
        def keep(module: nn.Module, inputs: Any, output: Any) -> Any:
            self._outputs[layer] = output
            return output.clone() if isinstance(output, Tensor) else None  # which what follows may change in place

        self.layer(layer).register_forward_hook(keep)

    def layer(self, name: str) -> nn.Module:
        """A module of the model by its name, or the one where its first part ends, "cut"."""
        modules, known = dict(self.model.named_modules()), self.model.cut if name == CUT else name
        if known is None:
            raise ConfigurationError(
                f"{self.task.model} is in one part, and something here looks at what a model's first part hands to its "
                f"second; take one that is in two parts, such as device-cnn for images and device-lstm for text, or "
                f"cut it after a layer, cut(model, at=...)"
            )
        if not known or known not in modules:
            there = [each for each in modules if each] + ([CUT] if self.model.cut else [])
            raise UnknownName("layer", name, there, of=self.task.model)
        module: nn.Module = modules[known]
        return module

    def initial(self, seed: int) -> Row:
        """A new learner's row, with weights drawn from this seed; `states` completes it."""
        row = self.weights(seed) | {"step": torch.zeros((), dtype=torch.int64)}
        row |= {f"optimizer.{slot}": torch.zeros_like(row["parameters"]) for slot in self.optimizer.slots}
        return row | self._errors() | self._settings()

    def weights(self, seed: int) -> Row:
        """The part of a new row that is not zero: weights and buffers, drawn from this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = to_split_model(self.spec.build())
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
        }
        return row | {k: self._layouts[k].flat(buffers).to(self.device) for k in self._worn if k not in row}

    def _settings(self) -> Row:
        """Settings of which every learner has its own value, as they are for the first."""
        owners = {e.name: e for e in self.role.exchanges} | {OPTIMIZER: self.spec.optimizer}
        return {
            f"setting.{owner}.{name}": torch.tensor(
                value_at(getattr(owners[owner], name), 0), dtype=self.dtype, device=self.device
            )
            for owner, names in self.spec.varied.items()
            for name in names
        }

    def _errors(self) -> Row:
        """What each encoding has rounded away so far: nothing."""
        return {
            f"error.{name}.{k}": torch.zeros(t.shape, dtype=self.dtype, device=self.device)
            for name, channel in self.channels.items()
            for k, t in channel.tensors.items()
            if keeps_error(channel, t)
        }

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Put these values into the row that is worn, by parameter or buffer name."""
        for name, value in tensors.items():
            (self._parameters[name] if name in self._parameters else self._buffers[name]).copy_(value)

    def wear(self, row: Row) -> None:
        """Step into one learner's state: the module's tensors become views into its row."""
        for key, named in self._worn.items():
            views = self._layouts[key].views(row[key])
            for name, tensor in named.items():
                tensor.data = views[name]
        self._put_on(row)

    def tensors(self, row: Row) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers of a row, or of a stack of rows, by name."""
        named = {key: layout.views(row[key]) for key, layout in self._layouts.items()}
        parameters = named.pop("parameters")
        return parameters, {name: view for views in named.values() for name, view in views.items()}

    def laid(self, buffers: Mapping[str, Tensor]) -> Row:
        """Buffers by name as the parts of a row, or of a stack of rows, that they lie in."""
        return {
            key: self._layouts[key].flat(buffers) for key, worn in self._worn.items() if worn and key != "parameters"
        }

    def _put_on(self, row: Row) -> None:
        self.row = row
        if self.spec.varied:
            self.exchanges = tuple(self.varied(e, e.name, row) for e in self.role.exchanges)
            self.optimizer = self.varied(self.spec.optimizer, OPTIMIZER, row)

    def varied(self, thing: Thing, name: str, row: Row) -> Thing:
        """The exchange or optimizer with a learner's own values where they vary."""
        mine = copy(thing)
        for setting in self.spec.varied.get(name, ()):
            object.__setattr__(mine, setting, row[f"setting.{name}.{setting}"])
        return mine

    @contextmanager
    def dressed(self, row: Row, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Iterator[None]:
        """For a while, one learner of a stack: inside a `vmap`, with these tensors for the module's own."""
        changed = ("row", "exchanges", "optimizer", "_parameters", "_buffers", "model_parameters", "model_buffers")
        before = {name: getattr(self, name) for name in changed if hasattr(self, name)}
        named, worn = {**parameters, **buffers}, [(holder, key, holder[key]) for holder, key, _ in self._holders]
        for holder, key, name in self._holders:
            holder[key] = named[name]
        self._parameters, self._buffers = dict(parameters), dict(buffers)
        self.model_parameters = {n: parameters[n] for n in self.task.parameters}
        self.model_buffers = {n: buffers[n] for n in self.task.buffers}
        self._put_on(row)
        try:
            yield
        finally:
            for holder, key, tensor in worn:
                holder[key] = tensor
            vars(self).update(before)

    def mode(self, training: bool) -> None:
        """Let layers such as BatchNorm know whether this is training."""
        for module in (self.model, *self.modules.values()):
            module.train(training)


def _holders(
    roots: Iterable[nn.Module], named: Mapping[str, Tensor]
) -> list[tuple[dict[str, Tensor | None], str, str]]:
    """Where modules keep each named tensor; one that several modules share is kept in several places."""
    names = {id(tensor): name for name, tensor in named.items()}
    modules = [module for root in roots for module in root.modules()]
    dicts: list[Any] = [held for m in modules for held in (m._parameters, m._buffers)]
    return [(held, key, names[id(t)]) for held in dicts for key, t in held.items() if t is not None]


def keeps_error(channel: schema.Channel, tensor: schema.Tensor) -> bool:
    """Whether a learner remembers what the encoding rounded away: for coarse encodings of changes, not of means."""
    return channel.moves and tensor.up.feedback


def as_sent(
    channel: schema.Channel, put: Contribution, errors: Mapping[str, Tensor]
) -> tuple[Contribution, dict[str, Tensor]]:
    """What the relay will see of a contribution, and what the encodings will then have rounded away.

    errors: what they rounded away so far, by tensor, which is added first.
    """
    seen, after = {}, {}
    for name, tensor in channel.tensors.items():
        value = put.tensors[name]
        if not keeps_error(channel, tensor):
            seen[name] = channel.encoding(name, "up").quantize(value)
            continue
        wanted = value + errors[name]
        seen[name] = tensor.up.quantize(wanted)
        after[name] = wanted - seen[name]
    return Contribution(seen, put.weight), after


def _refuse_overlap(channels: Mapping[str, schema.Channel]) -> None:
    """Two moving means cannot both move one tensor of the model."""
    moved: dict[str, str] = {}
    for name, channel in channels.items():
        for tensor in channel.tensors if channel.moves else ():
            if tensor in moved:
                raise ConfigurationError(f"{moved[tensor]!r} and {name!r} both share {tensor!r}; give them other parts")
            moved[tensor] = name


def _refuse_frozen(wrong: Collection[str], task: Task) -> None:
    """What moves by gradients alone cannot be without: a weight that has none would be moved by chance."""
    if wrong:
        raise ConfigurationError(
            f"{task.model}: {min(wrong)!r} is frozen (requires_grad=False), and an exchange moves it by gradients; let "
            f"it have some, or leave it out of the exchange's part"
        )


def _named(model: nn.Module, modules: Mapping[str, nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers by name: the model's, then those of the objective's and exchanges' own modules."""
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
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


def _task(model: SplitModel, spec: LearnerSpec) -> Task:
    buffers = {k: tuple(b.shape) for k, b in model.named_buffers() if b.is_floating_point()}
    parameters = {k: tuple(p.shape) for k, p in model.named_parameters()}
    known = Task(
        model.classes,
        model.width,
        spec.shape,
        model.bound,
        model=spec.model,
        symbols=spec.symbols,
        cut=cut_shape(model, spec.shape, spec.model) if model.cut is not None else None,
    )
    objective = spec.role.objective
    beside = nn.ModuleDict(objective.modules(known))  # learned beside the model, and shared with it where all of it is
    parameters |= {f"{objective.name}/{k}": tuple(p.shape) for k, p in beside.named_parameters()}
    floating = {k: b for k, b in beside.named_buffers() if b.is_floating_point()}
    buffers |= {f"{objective.name}/{k}": tuple(b.shape) for k, b in floating.items()}
    mine = {name for name in (*parameters, *buffers) if name.startswith(f"{objective.name}/")}
    parts = {part: names | mine if part == DEVICE else names for part, names in model.parts.items()}
    return replace(
        known,
        parameters=parameters,
        buffers=buffers,
        scaling=spec.scaling,
        public=spec.public,
        parts=parts,
    )
