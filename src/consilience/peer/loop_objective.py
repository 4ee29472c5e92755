"""The objective of a federation's method in a training loop of one's own: its loss, and the member's own answer.

What it remembers of the member's samples, and the private head it trains, are saved in the member's folder and never
sent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.exchanges.base import View
from consilience.kinds import kind_of
from consilience.objectives import Objective
from consilience.peer.batches import Loader, Unpack
from consilience.peer.exchange_context import ExchangeContext
from consilience.peer.forward_record import not_recorded
from consilience.peer.one_pass import count_classes
from consilience.peer.state import PeerState

_STATE, _MODULES = "state.", "modules."
"""Before the names of what is saved: what the objective remembers, and the tensors of its modules."""


class LoopObjective:
    """Computes the objective's loss and the own answer for mini-batches that the caller's model has seen."""

    def __init__(self, objective: Objective, context: ExchangeContext, state: PeerState) -> None:
        self.objective, self._context, self._peer_state = objective, context, state
        saved = {name: torch.from_numpy(np.array(array)) for name, array in state.private.items()}
        self._state = {k.removeprefix(_STATE): t for k, t in saved.items() if k.startswith(_STATE)}
        if objective.has_own_answer:
            self._modules = self._make_modules()
            own = {k.removeprefix(_MODULES): t for k, t in saved.items() if k.startswith(_MODULES)}
            self._modules.load_state_dict(own or self._modules.state_dict())

    def _make_modules(self) -> nn.ModuleDict:
        """The objective's modules, among those that move with the model."""
        context, name = self._context, self.objective.name
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
            made = nn.ModuleDict(self.objective.modules(replace(context.task, width=context.task.width or 1)))
        if made and not context.task.width:
            raise ConfigurationError(
                f"federation {context.charter.name!r} trains a private head on your model's features: give your model, "
                f"consilience.join(url, model=model)"
            )
        context.modules[name] = made.to(context.device)
        return context.modules[name]

    def count_classes(self, loader: Loader, unpack: Unpack | None) -> None:
        """Remember the class shares of the samples of a loader. unpack: makes (inputs, targets) of a batch."""
        counts = count_classes(loader, self._context.task, unpack)
        self._state = dict(self.objective.init_state(self._context.task, counts))
        self.keep()

    def loss(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """The objective's loss of a mini-batch."""
        if not self.objective.labeled or self.objective.layers:
            raise ConfigurationError(
                f"the objective {self.objective.name!r} of federation {self._context.charter.name!r} needs more than "
                f"features and logits; compute it in your loop, or take part with the command `consilience join`"
            )
        targets = self._context.check_batch("loss", features, logits, targets)
        with torch.autocast(features.device.type, enabled=False), not_recorded(self._context.classifier):
            return self.objective.loss(self._view(features, logits, targets))

    def own_logits(self, features: Tensor, logits: Tensor) -> Tensor:
        """The own answer for samples, (rows, classes)."""
        task = self._context.task
        unknown = kind_of(task).example_targets(task, len(features)).to(features.device)
        unknown = self._context.check_batch("own_logits", features, logits, unknown)
        with torch.autocast(features.device.type, enabled=False):
            return self.objective.own_logits(self._view(features, logits, unknown))

    def keep(self) -> None:
        """Put what the objective remembers and trains into the member's state, which is saved."""
        if not self.objective.has_own_answer:
            return
        private = {f"{_STATE}{name}": tensor for name, tensor in self._state.items()}
        private |= {f"{_MODULES}{name}": tensor for name, tensor in self._modules.state_dict().items()}
        self._peer_state.private = {name: tensor.numpy(force=True).copy() for name, tensor in private.items()}

    def _view(self, features: Tensor, logits: Tensor, targets: Tensor) -> View:
        context = self._context
        context.move_to(features.device)
        missing = self.objective.init_state(context.task, torch.ones(context.charter.classes)).keys() - self._state
        if missing:
            raise ConfigurationError(
                f"the loss of federation {context.charter.name!r} is calibrated by the class shares of your samples, "
                f"which are not known yet; call peer.count_classes(loader) once before you train"
            )
        state = {name: tensor.to(features.device) for name, tensor in self._state.items()}
        seen = {"features": features.float(), "logits": logits.float(), "targets": targets}
        return context.view(self.objective, **seen, objective_state=state)
