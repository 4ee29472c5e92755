"""One data owner: a model, private data, an optimiser, and what the exchanges of its role do with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from consilience.body import Blueprint, Body, Row, keeps_error
from consilience.exchanges.base import Contribution, Exchange, Received, View
from consilience.exchanges.weights import part_of
from consilience.objectives import Objective

__all__ = ["PASS_ROWS", "Batch", "Blueprint", "Learner", "Row"]

PASS_ROWS = 1024
"""Samples seen at once when nothing is trained: bounds the memory of a pass."""


@dataclass
class Batch:
    """A mini-batch with the random numbers its penalties asked for."""

    inputs: Tensor
    targets: Tensor
    draws: Mapping[str, Tensor] = field(default_factory=dict)


class Learner(Body):
    """A body that learns: trains, contributes, receives, is tested; always as the learner whose row it wears."""

    def states(self) -> Row:
        """The exchanges' own states at the start, seen in the row that is worn."""
        return {
            f"state.{e.name}.{k}": v.detach().clone()
            for e in self.exchanges
            for k, v in e.init(self._bare_view(e)).items()
        }

    # -- what exchanges see --------------------------------------------------------------------------------------------

    def _view(self, owner: Exchange | Objective, **seen: Any) -> View:
        """What an exchange or the objective may see."""
        return View(
            task=self.task,
            parameters=self.model_parameters,
            buffers=self.model_buffers,
            classify=self.model.classifier,
            outputs={k: self._outputs[k] for k in owner.layers if k in self._outputs},
            modules=self.modules[owner.name],  # type: ignore[arg-type]  # a ModuleDict is a mapping of callables
            **seen,
        )

    def _bare_view(self, exchange: Exchange) -> View:
        """A view for hooks that look at the model and not at data."""
        return self._view(exchange, **self._nothing())

    def _nothing(self) -> dict[str, Tensor]:
        self._outputs.clear()  # nobody's samples have been seen
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        names = ("inputs", "features", "logits", "valid")
        return dict.fromkeys(names, empty) | {"targets": empty.long(), "samples": empty.sum()}

    def _state(self, exchange: Exchange) -> dict[str, Tensor]:
        prefix = f"state.{exchange.name}."
        return {k[len(prefix) :]: v for k, v in self.row.items() if k.startswith(prefix)}

    def _keep_state(self, exchange: Exchange, state: Mapping[str, Tensor]) -> None:
        kept = {key: self.row[f"state.{exchange.name}.{key}"] for key in state}
        # Cloned before anything is written: a new value may be an old one under another name.
        fresh = {key: value.detach().clone() for key, value in state.items() if value is not kept[key]}
        for key, value in fresh.items():
            kept[key].copy_(value)

    def common(self, exchange: Exchange) -> dict[str, Tensor]:
        """The values a moving mean starts from, where this row is the federation's common model."""
        return {k: v.detach().clone() for k, v in exchange.common(self._bare_view(exchange)).items()}

    # -- the round -----------------------------------------------------------------------------------------------------

    def train(self, batches: Iterable[Batch], samples: int, received: Mapping[str, Received]) -> Tensor:
        """Local steps. Returns the mean of each loss term over the batches: the objective's, then each exchange's."""
        self._mode(training=True)
        losses = torch.zeros(1 + len(self.exchanges), dtype=torch.float64, device=self.device)
        self.summed = torch.zeros_like(self.gradient) if not self.all_trained else self.gradient
        steps = 0
        for batch in batches:
            losses += self._step(batch, samples, received)
            steps += 1
        if not self.all_trained and steps:
            self.summed /= steps
        return losses / max(steps, 1)

    def _step(self, batch: Batch, samples: int, received: Mapping[str, Received]) -> Tensor:
        objective = self.role.objective
        inputs = objective.prepare(batch.inputs, batch.draws.get(objective.name, batch.inputs.new_empty(0, 0)))
        features = self.model.features(inputs)
        seen = {
            "inputs": inputs,
            "features": features,
            "logits": self.model.classifier(features),
            "targets": batch.targets,
            "valid": torch.ones(len(batch.targets), dtype=self.dtype, device=self.device),
            "samples": torch.tensor(float(samples), dtype=self.dtype, device=self.device),
        }
        views = {e.name: self._view(e, **seen, **_draws(batch, e)) for e in self.exchanges if e.weight or e.steps}
        loss = objective.loss(self._view(objective, **seen, **_draws(batch, objective)))
        terms = [loss.detach()]
        for e in self.exchanges:
            term = e.penalty(self._state(e), views[e.name], received[e.name]) if e.weight else loss.new_zeros(())
            loss = loss + e.weight * term if e.weight else loss
            terms.append(term.detach())
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._move()
        for e in self.exchanges:
            if e.steps:
                self._keep_state(e, e.step(self._state(e), views[e.name]))
        return torch.stack(terms).to(torch.float64)

    def _move(self) -> None:
        row = self.row
        row["step"] += 1
        slots = {s: row[f"optimiser.{s}"] for s in self.optimiser.slots}
        moved, kept = self.optimiser.update(row["parameters"], self.gradient, slots, int(row["step"]))
        if not self.all_trained:
            self.summed += self.gradient
            moved = torch.where(self.trained, moved, row["parameters"])
        row["parameters"].copy_(moved)
        for slot, value in kept.items():
            row[f"optimiser.{slot}"].copy_(value)

    def forget_optimiser(self) -> None:
        """Begin the optimiser anew."""
        for key in ("step", *(f"optimiser.{s}" for s in self.optimiser.slots)):
            self.row[key].zero_()

    @torch.no_grad()
    def contribute(
        self,
        inputs: Tensor,
        targets: Tensor,
        samples: int,
        draws: Mapping[str, Tensor],
        received: Mapping[str, Received],
    ) -> dict[str, Contribution]:
        """One pass over the learner's samples, and what every exchange in `received` puts up, as the wire shows it.

        Where none of them looks at samples there is no pass, and their number is enough.
        """
        active = [e for e in self.exchanges if e.name in received]
        seen = self._samples(inputs, targets) if any(e.looks for e in active) else self._nothing()
        seen["samples"] = torch.tensor(float(samples), dtype=self.dtype, device=self.device)
        gradients = self.parameters.views(self.summed) if not self.all_trained else {}
        put: dict[str, Contribution] = {}
        for e in active:
            own = {n: gradients[n] for n in part_of(e.owns, self.task.parameters)} if e.owns else {}
            view = self._view(e, **seen, gradients=own, draws=draws.get(e.name, torch.empty(0, 0)))
            put[e.name] = self._encoded(e, e.contribute(self._state(e), view, received[e.name]))
        return put

    def _samples(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """All of the learner's samples as exchanges see them, in evaluation mode."""
        self._mode(training=False)
        parts, heard = [], defaultdict[str, list[Tensor]](list)
        for part in torch.split(inputs, PASS_ROWS):
            self._outputs.clear()
            parts.append(self.model.features(part))
            for layer, output in self._outputs.items():
                heard[layer].append(output)
        features = torch.cat(parts)
        valid = torch.ones(len(targets), dtype=self.dtype, device=self.device)
        logits = self.model.classifier(features)
        self._outputs |= {layer: torch.cat(outputs) for layer, outputs in heard.items()}
        return {"inputs": inputs, "features": features, "logits": logits, "targets": targets, "valid": valid}

    def _encoded(self, exchange: Exchange, put: Contribution) -> Contribution:
        """What the relay will see: quantised, with what was rounded away last time added first."""
        channel, seen = self.channels[exchange.name], {}
        for name, tensor in channel.tensors.items():
            value = put.tensors[name]
            if not keeps_error(channel, tensor):
                seen[name] = channel.encoding(name, "up").quantise(value)
                continue
            error = self.row[f"error.{exchange.name}.{name}"]
            wanted = value + error
            seen[name] = tensor.up.quantise(wanted)
            error.copy_(wanted - seen[name])
        return Contribution(seen, put.weight)

    @torch.no_grad()
    def receive(self, received: Mapping[str, Received]) -> None:
        """Let new answers change the model."""
        for e in self.exchanges:
            if not e.changes_model or e.name not in received:
                continue
            update = e.receive(self._state(e), self._bare_view(e), received[e.name])
            self.take({**update.parameters, **update.buffers})
            self._keep_state(e, update.state)

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """How many test samples of each class are told right, (classes,)."""
        self.model.eval()
        right = [
            self.model(x).argmax(1) == y
            for x, y in zip(torch.split(inputs, 256), torch.split(targets, 256), strict=True)
        ]
        return torch.bincount(targets[torch.cat(right)], minlength=self.task.classes)


def _draws(batch: Batch, owner: Exchange | Objective) -> dict[str, Tensor]:
    return {"draws": batch.draws[owner.name]} if owner.name in batch.draws else {}
