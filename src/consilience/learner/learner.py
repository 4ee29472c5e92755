"""One data owner: a model, private data, an optimizer, and what the exchanges of its role do with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from consilience.config.schedules import as_number
from consilience.errors import ConfigurationError
from consilience.exchanges.base import BatchView, Contribution, Exchange, Received, View
from consilience.functional.class_means import one_hot
from consilience.learner.body import Body, LearnerSpec, Row, as_sent
from consilience.objectives import Objective

__all__ = ["PASS_ROWS", "Batch", "Learner", "LearnerSpec", "Row"]

PASS_ROWS, EVALUATED_ROWS = 1024, 256
"""Samples seen at once when nothing is trained: bounds the memory of a pass."""
Seen = dict[str, Any]
"""Samples as exchanges see them: inputs, features, logits, targets, which are valid, and outputs of named layers."""


@dataclass
class Batch:
    """A mini-batch with the random numbers its penalties asked for."""

    inputs: Tensor
    targets: Tensor
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # among the learner's samples


class Learner(Body):
    """A body that learns: trains, contributes, receives, is tested; always as the learner whose row it wears."""

    def states(self) -> Row:
        """The exchanges' own states at the start, seen in the row that is worn."""
        return {
            f"state.{e.name}.{k}": v.detach().clone()
            for e in self.exchanges
            for k, v in e.init_state(self._bare_view(e)).items()
        }

    def template(self) -> Row:
        """A whole new row, worn: what every learner of this kind has."""
        row = self.initial(0)
        self.wear(row)
        row |= self.states()
        return row

    # -- what exchanges see --------------------------------------------------------------------------------------------

    def _view(self, owner: Exchange | Objective, seen: Seen, samples: Tensor, **more: Any) -> View:
        """What an exchange or the objective may see."""
        outputs = seen["outputs"]
        return View(
            task=self.task,
            parameters=self.model_parameters,
            buffers=self.model_buffers,
            classify=self.model.classifier,
            outputs={k: outputs[k] for k in owner.layers if k in outputs},
            modules=self.modules[owner.name],  # type: ignore[arg-type]  # a ModuleDict is a mapping of callables
            samples=samples,
            **{k: v for k, v in seen.items() if k != "outputs"},
            **more,
        )

    @torch.no_grad()
    def _encode(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Features of inputs, (rows, width), by these parameters; buffers are copies, and stay as they were."""
        worn = [(holder, key, name, held) for holder, key, name in self._holders if (held := holder[key]) is not None]
        for holder, key, name, held in worn:
            holder[key] = parameters.get(name, held) if name in self._parameters else held.clone()
        try:
            with self._precision():
                features: Tensor = self.model.features(inputs)
            return features.to(self.dtype)
        finally:
            for holder, key, _, held in worn:
                holder[key] = held

    def _bare_view(self, exchange: Exchange) -> View:
        """A view for hooks that look at the model and not at data."""
        return self._view(exchange, self.nothing(), self.count(0))

    def nothing(self) -> Seen:
        """Nobody's samples."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        names = ("inputs", "features", "logits", "valid")
        return dict.fromkeys(names, empty) | {"targets": empty.long(), "outputs": {}}

    def count(self, samples: int) -> Tensor:
        """A number of samples as exchanges see it."""
        return torch.full((), float(samples), dtype=self.dtype, device=self.device)

    def _state(self, exchange: Exchange) -> dict[str, Tensor]:
        prefix = f"state.{exchange.name}."
        return {k[len(prefix) :]: v for k, v in self.row.items() if k.startswith(prefix)}

    def _keep_state(self, exchange: Exchange, state: Mapping[str, Tensor]) -> None:
        kept = {key: self.row[f"state.{exchange.name}.{key}"] for key in state}
        # Cloned before anything is written: a new value may be an old one under another name.
        fresh = {key: value.detach().clone() for key, value in state.items() if value is not kept[key]}
        for key, value in fresh.items():
            kept[key].copy_(value)

    def common_values(self, exchange: Exchange) -> dict[str, Tensor]:
        """The values a moving mean starts from, where this row is the federation's common model."""
        return {k: v.detach().clone() for k, v in exchange.common_values(self._bare_view(exchange)).items()}

    @property
    def told(self) -> int:
        """How many numbers a mini-batch tells."""
        return 2 + len(self.exchanges)

    # -- the round -----------------------------------------------------------------------------------------------------

    def train(self, batches: Iterable[Batch], samples: int, received: Mapping[str, Received]) -> Tensor:
        """Local steps. Returns what batches tell, as means over them: see `losses`."""
        self.mode(training=True)
        losses = torch.zeros(self.told, dtype=torch.float64, device=self.device)
        self.summed = torch.zeros_like(self.gradient) if not self.all_trained else self.gradient
        steps, count = 0, self.count(samples)
        for batch in batches:
            losses += self._step(batch, count, received)
            steps += 1
        if not self.all_trained and steps:
            self.summed /= steps
        return losses / max(steps, 1)

    def _step(self, batch: Batch, samples: Tensor, received: Mapping[str, Received]) -> Tensor:
        loss, terms = self.losses(batch, samples, received)
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._move()
        return terms

    def losses(self, batch: Batch, samples: Tensor, received: Mapping[str, Received]) -> tuple[Tensor, Tensor]:
        """The loss of a mini-batch and what it tells; exchanges' own states move on the way.

        What it tells: loss terms, the objective's and then each exchange's, and last the share of samples told right.
        """
        objective = self.role.objective
        drawn = batch.draws.get(objective.name, batch.inputs.new_empty(0, 0))
        inputs = objective.prepare(self.task, batch.inputs, drawn)
        views = len(inputs) // len(batch.inputs)  # of each sample, one after the other
        seen = self.forward(inputs) | {"targets": batch.targets.repeat(views)}
        batch = _repeated(batch, views)
        view = self._view(objective, seen, samples, **_draws(batch, objective))
        loss, right = objective.loss(view), objective.batch_accuracy(view).detach()
        terms = [loss.detach()]
        for e in self.exchanges:
            if e.name not in self.penalized and not e.has_batch_hook:
                terms.append(torch.zeros_like(terms[0]))
                continue
            beside = BatchView(batch.positions, batch.inputs, self._encode)
            view = self._view(e, seen, samples, **_draws(batch, e), batch=beside)
            self._keep_pace(e, view)
            if e.name not in self.penalized:
                terms.append(torch.zeros_like(terms[0]))
                continue
            term = e.penalty(self._state(e), view, received[e.name])
            loss = loss + as_number(e.weight) * term
            terms.append(term.detach())
        return loss, torch.stack([*terms, right]).to(torch.float64)

    def forward(self, inputs: Tensor) -> Seen:
        """What the model makes of inputs, each of which is a sample."""
        self._outputs.clear()
        with self._precision():
            features = self.model.features(inputs)
            logits = self.model.classifier(features)
        valid = torch.ones(len(inputs), dtype=self.dtype, device=self.device)
        return {
            "inputs": inputs,
            "features": features.to(self.dtype),
            "logits": logits.to(self.dtype),
            "valid": valid,
            "outputs": dict(self._outputs),
        }

    def _precision(self) -> AbstractContextManager[object]:
        if not self.spec.half:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    @torch.no_grad()
    def _keep_pace(self, exchange: Exchange, view: View) -> None:
        """Let an exchange's own state move with the batch."""
        if exchange.has_batch_hook:
            self._keep_state(exchange, exchange.on_batch(self._state(exchange), view))

    @property
    def has_round_start(self) -> bool:
        """Whether any exchange begins local training with a look at all samples."""
        return any(e.has_round_start for e in self.exchanges)

    @torch.no_grad()
    def on_round_start(
        self, seen: Seen, samples: Tensor, draws: Mapping[str, Tensor], received: Mapping[str, Received]
    ) -> None:
        """Let exchanges' own states begin, after `represent`."""
        for e in (e for e in self.exchanges if e.has_round_start):
            drawn = {"draws": draws[e.name]} if e.name in draws else {}
            state = e.on_round_start(self._state(e), self._view(e, seen, samples, **drawn), received[e.name])
            self._keep_state(e, state)

    def _move(self) -> None:
        row = self.row
        row["step"] += 1
        slots = {s: row[f"optimizer.{s}"] for s in self.optimizer.slots}
        moved, kept = self.optimizer.update(row["parameters"], self.gradient, slots, int(row["step"]))
        if not self.all_trained:
            self.summed += self.gradient
            moved = torch.where(self.trained, moved, row["parameters"])
        row["parameters"].copy_(moved)
        for slot, value in kept.items():
            row[f"optimizer.{slot}"].copy_(value)

    def forget_optimizer(self) -> None:
        """Begin the optimizer anew."""
        for key in ("step", *(f"optimizer.{s}" for s in self.optimizer.slots)):
            self.row[key].zero_()

    def needs_representations(self, names: Iterable[str]) -> bool:
        """Whether any of these exchanges looks at samples: else the pass over them is left out."""
        return any(e.needs_representations for e in self.exchanges if e.name in names)

    @torch.no_grad()
    def represent(self, inputs: Tensor, targets: Tensor, valid: Tensor | None = None, rows: int = PASS_ROWS) -> Seen:
        """One pass over the learner's samples, in evaluation mode, `rows` at a time: what all exchanges see of them.

        valid: 1 where there is a sample, 0 where the array is only filled up.
        """
        self.mode(training=False)
        seen = _joined([self.forward(part) for part in torch.split(inputs, rows)]) | {"targets": targets}
        return seen if valid is None else seen | {"valid": valid}

    @torch.no_grad()
    def contribute(
        self,
        seen: Seen,
        samples: Tensor,
        draws: Mapping[str, Tensor],
        received: Mapping[str, Received],
        summed: Tensor | None = None,
    ) -> dict[str, Contribution]:
        """What every exchange in `received` puts up, as the wire shows it, after `represent` or of `nothing`.

        summed: the round's mean gradient, where it is not the one `train` left.
        """
        gradients = {} if self.all_trained else self.parameters.views(self.summed if summed is None else summed)
        put: dict[str, Contribution] = {}
        for e in (e for e in self.exchanges if e.name in received):
            own = (
                {n: gradients[n] for n in self.task.covered(e.owned_part, self.task.parameters)} if e.owned_part else {}
            )
            drawn = {"draws": draws[e.name]} if e.name in draws else {}
            view = self._view(e, seen, samples, gradients=own, **drawn)
            put[e.name] = self._encoded(e, e.contribute(self._state(e), view, received[e.name]))
        return put

    def _encoded(self, exchange: Exchange, put: Contribution) -> Contribution:
        """What the relay will see: quantized, with what was rounded away last time added first."""
        channel, prefix = self.channels[exchange.name], f"error.{exchange.name}."
        errors = {k[len(prefix) :]: error for k, error in self.row.items() if k.startswith(prefix)}
        sent, after = as_sent(channel, put, errors)
        for name, error in after.items():
            errors[name].copy_(error)
        return sent

    @torch.no_grad()
    def receive(self, received: Mapping[str, Received]) -> None:
        """Let new answers change the model: where an answer is not fresh, everything stays as it was."""
        for e in self.exchanges:
            if not e.changes_model or e.name not in self.downloading or e.name not in received:
                continue
            state, fresh = self._state(e), received[e.name].fresh
            update = e.receive(state, self._bare_view(e), received[e.name])
            held = {**self._parameters, **self._buffers}
            new = {**update.parameters, **update.buffers}
            self.take({n: torch.where(fresh, value, held[n]) for n, value in new.items()})
            self._keep_state(e, {k: torch.where(fresh, value, state[k]) for k, value in update.state.items()})

    @torch.no_grad()
    def features(self, inputs: Tensor, rows: int = PASS_ROWS) -> Tensor:
        """What the model makes of inputs, in evaluation mode, `rows` at a time, (samples, width)."""
        self.mode(training=False)
        parts = []
        for part in torch.split(inputs, rows):
            with self._precision():
                parts.append(self.model.features(part).to(self.dtype))
        return torch.cat(parts)

    @torch.no_grad()
    def logits(self, inputs: Tensor, rows: int = PASS_ROWS) -> Tensor:
        """What is told of inputs, in evaluation mode, `rows` at a time: by the model and, where the objective has a
        head of its own, by that, (1 or 2, samples, classes)."""
        self.mode(training=False)
        return torch.cat([self._told(part) for part in torch.split(inputs, rows)], dim=1)

    def _told(self, inputs: Tensor) -> Tensor:
        objective, seen = self.role.objective, self.forward(inputs)
        if not objective.has_own_head:
            return seen["logits"][None]  # type: ignore[no-any-return]
        nobody = torch.zeros(len(inputs), dtype=torch.int64, device=self.device)
        own = objective.head_logits(self._view(objective, seen | {"targets": nobody}, self.count(0)))
        return torch.stack([seen["logits"], own])

    @torch.no_grad()
    def outputs(self, inputs: Tensor, layers: Sequence[str], rows: int = EVALUATED_ROWS) -> dict[str, Tensor]:
        """What layers of the model make of inputs, in evaluation mode, `rows` at a time, (samples, ...) each."""
        self.mode(training=False)
        heard: dict[str, Any] = {}
        parts: dict[str, list[Tensor]] = {layer: [] for layer in layers}
        with ExitStack() as hooks:
            for layer in layers:
                keep = partial(_keep, heard, layer)
                hooks.callback(self.layer(layer).register_forward_hook(keep).remove)
            for part in torch.split(inputs, rows):
                heard.clear()
                self.forward(part)
                for layer in layers:
                    what = f"layer {layer!r} of {self.task.model}"
                    parts[layer].append(_one_each(heard.get(layer), len(part), what).to(self.dtype))
        return {layer: torch.cat(seen) for layer, seen in parts.items()}

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor, rows: int = EVALUATED_ROWS) -> Tensor:
        """How many test samples of each class are told right, (classes,); `rows` samples at a time."""
        self.mode(training=False)
        told = torch.cat([self.forward(part)["logits"].argmax(1) for part in torch.split(inputs, rows)])
        right = one_hot(targets, self.task.classes) & (told == targets)[:, None]  # (samples, classes)
        return right.sum(0)


def _keep(heard: dict[str, Any], layer: str, module: nn.Module, given: object, output: Any) -> Any:
    heard[layer] = output
    return output.clone() if isinstance(output, Tensor) else None  # which what follows may change in place


def _one_each(output: Any, samples: int, what: str) -> Tensor:
    """A layer's output for each of the samples; of one that gives several things the first, as a recurrent one does."""
    first = output[0] if isinstance(output, tuple) and output else output
    if first is None:
        raise ConfigurationError(f"{what} is not reached when the model is run; name another")
    if not isinstance(first, Tensor) or first.shape[:1] != (samples,):
        given = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise ConfigurationError(f"{what} gives {given} for {samples} samples, and not a value for each; name another")
    return first


def _joined(parts: Sequence[Seen]) -> Seen:
    """Parts of a pass as one."""
    return {
        key: _joined([part[key] for part in parts]) if isinstance(first, dict) else torch.cat([p[key] for p in parts])
        for key, first in parts[0].items()
    }


def _repeated(batch: Batch, views: int) -> Batch:
    """A batch with as many rows as there are views of its samples."""
    if views == 1:
        return batch
    draws = {name: drawn.repeat(1, views) for name, drawn in batch.draws.items()}
    inputs = batch.inputs.repeat(views, *(1,) * (batch.inputs.ndim - 1))
    return Batch(inputs, batch.targets.repeat(views), draws, batch.positions.repeat(views))


def _draws(batch: Batch, owner: Exchange | Objective) -> dict[str, Tensor]:
    return {"draws": batch.draws[owner.name]} if owner.name in batch.draws else {}
