"""A caller's model as exchanges see it: views, draws, their modules, states and answers, on the model's device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.channels import empty_answer
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Exchange, Received, View
from consilience.learner.batches import LearnerKey
from consilience.learner.draws import draw_uniform
from consilience.learner.residuals import keeps_residual
from consilience.method import Method
from consilience.models import SplitModel, WholeModel
from consilience.models.frozen import frozen_names
from consilience.models.split import network_names
from consilience.objectives import Objective
from consilience.peer.called_model import layer_name, own_module, split_model
from consilience.peer.charter_frozen import check_frozen_part
from consilience.peer.connection import FederationConnection
from consilience.peer.loop_targets import FORMS, check_targets
from consilience.peer.member_method import check_charter_channels
from consilience.randomness import seed_of
from consilience.task import Task
from consilience.wire import schema
from consilience.wire.agreement import without_local_choices


class ExchangeContext:
    """Gives the hooks of exchanges what they need in a training loop that is not the library's.

    device: where the model was seen last; answers, states and modules move there with it.
    """

    def __init__(self, connection: FederationConnection, method: Method, exchanges: Sequence[Exchange]) -> None:
        self._connection, self._method, self._exchanges = connection, method, exchanges
        self.charter, self.channels = connection.charter, connection.channels
        self._takes_any_model = method.roles[method.role_of(connection.number)].takes_any_model
        self.model: SplitModel | None = None
        self._given: nn.Module | None = None
        self.task = Task(self.charter.classes, self._shared_width(), target=self.charter.predicted)
        self.device = torch.device("cpu")
        self._received: dict[str, Received] = {}
        self._states: dict[str, dict[str, Tensor]] = {}
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
            torch.default_generator.manual_seed(seed_of("modules", self.charter.seed, connection.number))
            self.modules = {e.name: nn.ModuleDict(e.modules(self.task)) for e in exchanges}

    # -- the model ---------------------------------------------------------------------------------------------------

    def use_model(self, model: nn.Module, layer: str | None = None) -> None:
        """Use this model from now on; refused where its channels are not the federation's. layer: its classifier."""
        model = own_module(model)
        if self.model is None or (model is not self.model and model is not self._given):
            split = split_model(model, layer, self.charter.classes if self._takes_any_model else None)
            task = replace(_task_of(split), target=self.charter.predicted)
            self._refuse_other_channels(task, _describe(split))
            check_frozen_part(self.charter, "your model", split, task, self._exchanges)
            self._given, self.model, self.task = model, split, task
        self.follow_model()

    def require_model(self) -> SplitModel:
        """The model; refused where none was given yet."""
        if self.model is None:
            raise ConfigurationError("the model is not known yet: give it, consilience.join(url, model=model)")
        return self.model

    def _refuse_other_channels(self, task: Task, model: str) -> None:
        """Refuse a model of another task; where only weights travel, it is enough that these fit."""
        name = self.charter.name
        own = {e.name: e.channel(task) for e in self._exchanges}
        if task.classes != self.charter.classes and not (self._takes_any_model and _fit(own, self.channels)):
            what = "classes" if self.charter.kind == "single-label" else f"outputs for {self.charter.kind}"
            raise ConfigurationError(
                f"your model has {task.classes} {what}, and federation {name!r} has {self.charter.classes}; where "
                f"another linear layer computes the logits, name it, consilience.join(..., layer=...)"
            )
        check_charter_channels(self._method, own, self.charter, model)

    def _shared_width(self) -> int:
        """The width of the features that the federation shares; 0 where it shares none."""
        return max((width for e in self._exchanges for width in self._feature_widths(e)), default=0)

    def _feature_widths(self, e: Exchange) -> list[int]:
        """The widths of the tensors of an exchange that are as wide as the model's features."""
        tensors = self.channels[e.name].tensors
        return [tensors[name].shape[-1] for name in e.feature_tensors if name in tensors]

    def follow_model(self) -> None:
        """Move to the model's device, where there is a model: it may have been moved."""
        if self.model is not None:
            self.move_to(next(self.model.parameters()).device)

    def move_to(self, device: torch.device) -> None:
        """Move answers, states and modules to a device."""
        if device == self.device:
            return
        self.device = device
        self._received.clear()
        self._states = {name: {k: t.to(device) for k, t in state.items()} for name, state in self._states.items()}
        for module in self.modules.values():
            module.to(device)

    # -- what hooks are given ----------------------------------------------------------------------------------------

    def state(self, e: Exchange) -> dict[str, Tensor]:
        """The exchange's own state at this member."""
        if e.name not in self._states:
            self._states[e.name] = e.init_state(self.view(e))
        return self._states[e.name]

    def set_state(self, e: Exchange, state: Mapping[str, Tensor]) -> None:
        """Replace the exchange's own state."""
        self._states[e.name] = dict(state)

    def received(self, e: Exchange) -> Received:
        """The newest answer of an exchange; before the first one, zeros with count 0."""
        if e.name not in self._received:
            answers = self._connection.state.answers
            answer = answers[e.name] if e.name in answers else empty_answer(self.channels[e.name])
            tensors = {k: torch.from_numpy(np.array(t)).to(self.device) for k, t in answer.tensors.items()}
            count = torch.from_numpy(np.array(answer.count, dtype=np.float64)).to(self.device)
            self._received[e.name] = Received(tensors, count, torch.ones((), dtype=torch.bool, device=self.device))
        return self._received[e.name]

    def forget_received(self, e: Exchange) -> None:
        """Read the newest answer of an exchange again: there is a newer one."""
        self._received.pop(e.name, None)

    def draws(self, e: Exchange, count: int, rows: int, round_: int, step: int) -> dict[str, Tensor]:
        """`count` uniform numbers for each row, (count, rows), as the view takes them; nothing where it needs none."""
        if not count:
            return {}
        key = LearnerKey(self.charter.seed, self._connection.number)
        return {"draws": draw_uniform(e.name, (count, rows), key, round_, step).to(self.device)}

    def has_reference(self, e: Exchange) -> bool:
        """Whether the values are held that a change of weights is measured from; other exchanges need none."""
        return e.name in self._connection.state.answers or not self.channels[e.name].moves

    def version(self, name: str) -> int:
        """The version of the answer of a channel that is held; 0 before the first one."""
        answers = self._connection.state.answers
        return answers[name].version if name in answers else 0

    def save(self) -> None:
        """Save the member's state."""
        self._connection.save()

    def pool_draws(self) -> dict[str, int]:
        """How many entries of each pool to download: as many as the member's own exchange takes."""
        own = {e.name: e.channel(self.task) for e in self._exchanges if isinstance(self.channels[e.name], schema.Pool)}
        return {name: channel.draw for name, channel in own.items() if isinstance(channel, schema.Pool)}

    def residuals(self, channel: schema.Channel) -> dict[str, Tensor]:
        """What the encodings of a channel have rounded away so far, by tensor; at first nothing."""
        held = self._connection.state.residuals.get(channel.name, {})
        return {
            k: torch.from_numpy(np.array(held[k] if k in held else np.zeros(t.shape, np.float32))).to(self.device)
            for k, t in channel.tensors.items()
            if keeps_residual(channel, t)
        }

    def view(self, owner: Exchange | Objective, **seen: Any) -> View:
        """What an exchange or the objective may see; what is not given is empty."""
        empty, model = torch.empty(0, device=self.device), self.model
        given = {"inputs": empty, "features": empty, "logits": empty, "targets": empty.long(), **seen}
        given.setdefault("samples", torch.zeros((), device=self.device))
        given.setdefault("classify", model.classifier if model is not None else _no_classifier)
        return View(
            task=self.task,
            parameters={k: p for k, p in _parameters(model) if k not in self.task.frozen},
            buffers={k: b for k, b in _buffers(model) if k not in self.task.frozen},
            valid=torch.ones(len(given["targets"]), device=self.device),
            modules=self.modules.get(owner.name, {}),  # type: ignore[arg-type]  # a ModuleDict is a mapping of callables
            **given,
        )

    def check_batch(self, call: str, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """The targets as exchanges take them, with the features; a mini-batch that does not fit is refused.

        call: its name. Classes that are on an accelerator are not read, which would wait for it in every step.
        """
        classes, rows = self.charter.classes, len(features)
        if features.ndim != 2 or logits.shape != (rows, classes) or targets.shape[:1] != (rows,):
            raise ConfigurationError(
                f"{call} was given features {tuple(features.shape)}, logits {tuple(logits.shape)} and targets "
                f"{tuple(targets.shape)} of {targets.dtype}; it takes (rows, width), (rows, {classes}) and "
                f"{FORMS[self.charter.kind].format(classes=classes)}"
            )
        for e in self._exchanges:
            wrong = [width for width in self._feature_widths(e) if width != features.shape[1]]
            if wrong:
                raise ConfigurationError(
                    f"your features have width {features.shape[1]}, and federation {self.charter.name!r} shares "
                    f"features of width {wrong[0]}; give yours the same width, such as with one more linear layer"
                )
        checked = check_targets(self.task, targets, f"the targets of {call}", read=targets.device.type == "cpu")
        return checked.to(features.device)


def _fit(own: Mapping[str, schema.Channel], channels: Mapping[str, schema.Channel]) -> bool:
    """Whether a member's own channels are those of the charter."""
    return all(without_local_choices(own[name]) == without_local_choices(channels[name]) for name in own)


def _describe(model: SplitModel) -> str:
    """A caller's model, for messages about what it cannot share."""
    if isinstance(model, WholeModel):
        return "your model"
    layer = layer_name(model.original, model.classifier)
    return f"your model, divided at {layer!r} (layer=... names another linear layer),"


def _task_of(model: SplitModel) -> Task:
    parameters = {k: tuple(p.shape) for k, p in _parameters(model)}
    buffers = {k: tuple(b.shape) for k, b in _buffers(model)}
    return Task(
        model.classes,
        model.width,
        (),
        model.bound,
        parameters,
        buffers,
        type(model.original).__name__,
        parts=model.parts,
        frozen=frozen_names(model),
        network_names=network_names(model),
    )


def _parameters(model: SplitModel | None) -> Iterable[tuple[str, Tensor]]:
    return () if model is None else model.named_parameters()


def _buffers(model: SplitModel | None) -> Iterable[tuple[str, Tensor]]:
    """Those with numbers that can be averaged."""
    return ((k, b) for k, b in (() if model is None else model.named_buffers()) if b.is_floating_point())


def _no_classifier(features: Tensor) -> Tensor:
    raise ConfigurationError("the penalty needs your classifier: peer.penalty(features, logits, targets, classifier)")
