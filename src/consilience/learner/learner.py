"""One data owner: what the objective and the exchanges of its role do with its model, its samples and its state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from consilience.config.schedules import as_number, highest_value
from consilience.errors import ConfigurationError
from consilience.exchanges.base import BatchView, Contribution, Exchange, Received, View
from consilience.exchanges.owning import OwningExchange
from consilience.exchanges.weights import covered_parameters
from consilience.learner.device import widest_float
from consilience.learner.layout import Layout
from consilience.learner.model_binding import ModelBinding
from consilience.learner.modules import LearnerModules, Representations
from consilience.learner.private_uploads import ENTERING, NOISE, noise_size, private_contributions
from consilience.learner.residuals import as_sent
from consilience.learner.spec import AUGMENTATION, OPTIMIZER, LearnerSpec
from consilience.learner.state import LearnerState, Tensors
from consilience.objectives import Objective
from consilience.optimizers import Optimizer
from consilience.task import Task
from consilience.wire import schema

SettingsOwner = TypeVar("SettingsOwner", Exchange, Optimizer)


@dataclass
class PrivateStep:
    """What a private step needs beside its batch.

    drawn: (rows,) whether a row holds a sample that was drawn. normal: (parameters,) standard normal numbers. noise:
    () the noise multiplier. expected: () the expected size of a batch.
    """

    drawn: Tensor
    normal: Tensor
    noise: Tensor
    expected: Tensor


@dataclass
class Batch:
    """A mini-batch with the random numbers its penalties asked for."""

    inputs: Tensor
    targets: Tensor
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # among the learner's samples
    progress: float = 1.0  # which part of the round's batches are done after this one
    private: PrivateStep | None = None  # where the step is private


class Learner:
    """Computes losses, contributes and receives, always for the learner whose state is bound.

    `bind` binds a state for work in place, `bound` binds one for a while inside a `vmap`.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        self.spec, self.role = spec, spec.role
        self.exchanges, self.optimizer = spec.role.exchanges, spec.optimizer  # with the bound learner's own settings
        self.modules = LearnerModules(spec)
        self.model, self.task = self.modules.model, self.modules.task
        _refuse_untrained(self.modules)
        self.channels = {e.name: e.channel(self.task) for e in self.exchanges}
        _refuse_overlap(self.channels)
        self.binding = ModelBinding(self.modules)
        weighed = {e.name for e in self.exchanges if highest_value(e.weight)} | set(spec.varied) - {OPTIMIZER}
        self.penalized = weighed & self.downloading
        """Names of the exchanges whose penalty may add to the loss."""
        moving = {name for name, channel in self.channels.items() if channel.moves}
        self.receiving = self.downloading | self.uploading & moving
        """Names of the exchanges whose answers it is sent: a change is measured from the newest common values."""
        mask = ~self.binding.parameters.mask(_owned_parameters(self.exchanges, self.task))
        self.optimized: Tensor | None = None if bool(mask.all()) else mask.to(self.device)
        """(parameters,) which parameters the local optimizer changes; None where it changes all of them."""
        self.moved_before_batches = frozenset(
            e.name for e in self.exchanges if isinstance(e, OwningExchange) and e.moves_before_batches
        )
        """Names of the exchanges that move the part they own before every mini-batch."""
        self.rescaled = _rescaled_parameters(self.binding.parameters, spec, self.task)
        """Where among the parameters those with longer or shorter steps are; None where all steps are the same."""

    # -- the bound state -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> LearnerState:
        """The state that is bound now."""
        return self.binding.state

    def bind(self, state: LearnerState) -> None:
        """Work on this state, in place."""
        self.modules.check_memory_order()
        self.binding.bind(state)
        self._use_settings(state)

    @contextmanager
    def bound(self, state: LearnerState, parameters: Tensors, buffers: Tensors) -> Iterator[None]:
        """For a while, work on this state, with these tensors in the place of the modules' own."""
        self.modules.check_memory_order()
        before = self.exchanges, self.optimizer
        with self.binding.bound(state, parameters, buffers):
            self._use_settings(state)
            try:
                yield
            finally:
                self.exchanges, self.optimizer = before

    def _use_settings(self, state: LearnerState) -> None:
        if self.spec.varied:
            self.exchanges = tuple(self.with_settings(e, e.name, state.settings) for e in self.role.exchanges)
            self.optimizer = self.with_settings(self.spec.optimizer, OPTIMIZER, state.settings)

    def with_settings(self, owner: SettingsOwner, name: str, settings: Mapping[str, Tensors]) -> SettingsOwner:
        """An exchange or the optimizer with a learner's own values of its settings."""
        own = copy(owner)
        for setting in self.spec.varied.get(name, ()):
            object.__setattr__(own, setting, settings[name][setting])
        return own

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """Of its parameters."""
        return self.spec.dtype

    @property
    def device(self) -> torch.device:
        """Where its state and its samples are."""
        return torch.device(self.spec.device)

    @property
    def uploading(self) -> frozenset[str]:
        """Names of the exchanges it uploads to."""
        return self.role.uploading

    @property
    def downloading(self) -> frozenset[str]:
        """Names of the exchanges whose answers change what it learns."""
        return self.role.downloading

    @property
    def loss_terms(self) -> list[str]:
        """Names of the loss terms, in the order in which `losses` returns them."""
        return [self.role.objective.name, *(e.name for e in self.exchanges)]

    # -- what exchanges see --------------------------------------------------------------------------------------------

    def view(self, owner: Exchange | Objective, seen: Representations, samples: Tensor, **more: Any) -> View:
        """What an exchange or the objective sees of the learner."""
        outputs, binding = seen["outputs"], self.binding
        private: dict[str, Any] = {}  # what only the objective sees
        if owner is self.role.objective:
            private = {"objective_state": self.state.objective_state, "own_model": self.modules.run_own_model}
        return View(
            task=self.task,
            parameters=binding.model_parameters,
            buffers=binding.model_buffers,
            classify=self.model.classifier,
            outputs={k: outputs[k] for k in owner.layers if k in outputs},
            modules=self.modules.extra[owner.name],  # type: ignore[arg-type]  # a ModuleDict is a mapping of callables
            samples=samples,
            **private,
            **{k: v for k, v in seen.items() if k != "outputs"},
            **more,
        )

    def model_view(self, exchange: Exchange) -> View:
        """A view of the model without samples."""
        return self.view(exchange, self.no_samples(), self.count(0))

    def no_samples(self) -> Representations:
        """Representations of no samples at all."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        names = ("inputs", "features", "logits", "valid")
        return dict.fromkeys(names, empty) | {"targets": empty.long(), "outputs": {}}

    def count(self, samples: int) -> Tensor:
        """A number of samples, as exchanges see it."""
        return torch.full((), float(samples), dtype=self.dtype, device=self.device)

    # -- a learner's part of a round -----------------------------------------------------------------------------------

    @torch.no_grad()
    def start_round(
        self, seen: Representations, samples: Tensor, draws: Mapping[str, Tensor], received: Mapping[str, Received]
    ) -> None:
        """Let exchanges prepare their state before local training, with all of the learner's samples."""
        for e in (e for e in self.exchanges if e.has_round_start):
            view = self.view(e, seen, samples, **_draws(draws, e))
            _keep_exchange_state(
                self.state, e, e.on_round_start(_exchange_state(self.state, e), view, received[e.name])
            )

    def losses(self, batch: Batch, samples: Tensor, received: Mapping[str, Received]) -> tuple[Tensor, Tensor]:
        """The loss of a mini-batch, and its parts: each loss term, and the share of correct predictions.

        The terms are the objective's and then each exchange's, without its weight. Exchanges that follow the batches
        update their state here.
        """
        objective = self.role.objective
        drawn = batch.draws.get(objective.name, batch.inputs.new_empty(0, 0))
        inputs = objective.prepare(self.task, _augmented(self, batch), drawn)
        views = len(inputs) // len(batch.inputs)  # of each sample, one after the other
        seen = self.modules.forward(inputs) | {"targets": _repeat(batch.targets, views)}
        batch = _repeated(batch, views)
        view = self.view(objective, seen, samples, **_draws(batch.draws, objective))
        loss, correct = objective.loss(view), objective.batch_accuracy(view).detach()
        terms = [loss.detach()]
        for e in self.exchanges:
            if e.name not in self.penalized and not e.has_batch_hook:
                terms.append(torch.zeros_like(terms[0]))
                continue
            more = BatchView(batch.positions, batch.inputs, self.binding.features_with)
            view = self.view(e, seen, samples, **_draws(batch.draws, e), batch=more)
            _follow_batch(self.state, e, view)
            if e.name not in self.penalized:
                terms.append(torch.zeros_like(terms[0]))
                continue
            term = e.penalty(_exchange_state(self.state, e), view, received[e.name])
            loss = loss + as_number(e.weight) * term
            terms.append(term.detach())
        return loss, torch.stack([*terms, correct]).to(widest_float(self.device))

    @torch.no_grad()
    def contribute(
        self,
        seen: Representations,
        samples: Tensor,
        draws: Mapping[str, Tensor],
        received: Mapping[str, Received],
        mean_gradient: Tensor | None = None,
    ) -> dict[str, Contribution]:
        """What it uploads to every exchange in `received`, as the relay decodes it.

        mean_gradient: of the round's batches, needed where an exchange owns a part of the model.
        """
        gradients = {} if mean_gradient is None else self.binding.parameters.views(mean_gradient)
        due, views = [e for e in self.exchanges if e.name in received], dict[str, View]()
        given: dict[str, Contribution] = {}
        if ENTERING in draws and len(seen["valid"]):
            seen = seen | {"valid": seen["valid"] * draws[ENTERING]}
        for e in due:
            names = self.task.covered(e.owned_part, self.task.parameters) if e.owned_part else ()
            owned = {name: gradients[name] for name in names}
            views[e.name] = self.view(e, seen, samples, gradients=owned, **_draws(draws, e))
            given[e.name] = e.contribute(_exchange_state(self.state, e), views[e.name], received[e.name])
        if self.spec.privacy is not None:
            given = private_contributions(self.spec.privacy, due, self.channels, views, given, draws[NOISE])
        return {e.name: self.encode(e, given[e.name]) for e in due}

    def encode(self, exchange: Exchange, contribution: Contribution) -> Contribution:
        """The contribution as the relay decodes it; what the encoding rounds away stays in the state's residuals."""
        residuals = self.state.residuals.get(exchange.name, {})
        sent, after = as_sent(self.channels[exchange.name], contribution, residuals)
        for name, residual in after.items():
            residuals[name].copy_(residual)
        return sent

    @torch.no_grad()
    def receive(self, received: Mapping[str, Received]) -> None:
        """Let new answers change the model: where an answer is not fresh, everything stays as it was."""
        for e in self.exchanges:
            if not e.changes_model or e.name not in self.downloading or e.name not in received:
                continue
            state, fresh = _exchange_state(self.state, e), received[e.name].fresh
            update = e.receive(state, self.model_view(e), received[e.name])
            new = {**update.parameters, **update.buffers}
            self.binding.assign({n: torch.where(fresh, value, self.binding.tensor(n)) for n, value in new.items()})
            _keep_exchange_state(
                self.state, e, {k: torch.where(fresh, value, state[k]) for k, value in update.state.items()}
            )


def upload_noise_size(learner: Learner, names: Collection[str]) -> int:
    """How many normal numbers `contribute` needs, under the name NOISE, for an upload to these exchanges."""
    due = [e for e in learner.exchanges if e.name in names]
    return 0 if learner.spec.privacy is None else noise_size(learner.spec.privacy, due, learner.channels)


def batch_draws(learner: Learner) -> dict[str, int]:
    """How many uniform numbers each row of a mini-batch needs, by the name of who uses them."""
    found = {owner.name: owner.batch_draws for owner in learner.modules.owners if owner.batch_draws}
    augmentation = learner.spec.augmentation
    return found if augmentation is None else found | {AUGMENTATION: augmentation.draws}


def _augmented(learner: Learner, batch: Batch) -> Tensor:
    """The inputs of a mini-batch, randomly changed where that is asked for."""
    if learner.spec.augmentation is None:
        return batch.inputs
    return learner.spec.augmentation(learner.task, batch.inputs, batch.draws[AUGMENTATION])


def _exchange_state(state: LearnerState, exchange: Exchange) -> Tensors:
    """A dictionary of its own: an exchange may change the one it is given."""
    return dict(state.exchange_state.get(exchange.name, {}))


@torch.no_grad()
def _keep_exchange_state(state: LearnerState, exchange: Exchange, new: Mapping[str, Tensor]) -> None:
    kept = state.exchange_state.get(exchange.name, {})
    # Cloned before anything is written: a new value may be an old one under another name.
    fresh = {key: value.detach().clone() for key, value in new.items() if value is not kept[key]}
    for key, value in fresh.items():
        kept[key].copy_(value)


@torch.no_grad()
def _follow_batch(state: LearnerState, exchange: Exchange, view: View) -> None:
    if exchange.has_batch_hook:
        _keep_exchange_state(state, exchange, exchange.on_batch(_exchange_state(state, exchange), view))


def _owned_parameters(exchanges: Collection[Exchange], task: Task) -> set[str]:
    """Names of the parameters that exchanges move by themselves, in the place of the local optimizer."""
    owned: set[str] = set()
    for e in exchanges:
        owned |= set(covered_parameters(e.name, e.owned_part, task)) if e.owned_part is not None else set()
    return owned


def _rescaled_parameters(layout: Layout, spec: LearnerSpec, task: Task) -> slice | None:
    """Where the parameters are whose steps are not the model's: they are next to each other."""
    objective = spec.role.objective
    prefixes = tuple(f"{objective.name}/{module}." for module in objective.rescaled_modules)
    names = {name for name in layout.shapes if name.startswith(prefixes)}
    if objective.step_factor(task) == 1 or not names or not spec.optimizer.adaptive:
        return None
    where = layout.mask(names).nonzero()
    return slice(int(where.min()), int(where.max()) + 1)


def _refuse_overlap(channels: Mapping[str, schema.Channel]) -> None:
    """Two moving means cannot both move one tensor of the model."""
    moved: dict[str, str] = {}
    for name, channel in channels.items():
        for tensor in channel.tensors if channel.moves else ():
            if tensor in moved:
                raise ConfigurationError(f"{moved[tensor]!r} and {name!r} both share {tensor!r}; give them other parts")
            moved[tensor] = name


def _refuse_untrained(modules: LearnerModules) -> None:
    """A model with nothing to train learns nothing."""
    if not modules.named_tensors()[0]:
        raise ConfigurationError(
            f"{modules.task.model}: all of its parameters are frozen (requires_grad=False), so there is nothing to "
            f"train; unfreeze some, such as those of its classifier, or add adapters (docs/guides/adapters.md)"
        )


def _repeated(batch: Batch, views: int) -> Batch:
    """A batch with as many rows as there are views of its samples."""
    if views == 1:
        return batch
    draws = {name: drawn.repeat(1, views) for name, drawn in batch.draws.items()}
    inputs, targets = _repeat(batch.inputs, views), _repeat(batch.targets, views)
    return Batch(inputs, targets, draws, batch.positions.repeat(views))


def _repeat(rows: Tensor, times: int) -> Tensor:
    """The rows several times, one after the other."""
    return rows.repeat(times, *(1,) * (rows.ndim - 1))


def _draws(draws: Mapping[str, Tensor], owner: Exchange | Objective) -> dict[str, Tensor]:
    return {"draws": draws[owner.name]} if owner.name in draws else {}
