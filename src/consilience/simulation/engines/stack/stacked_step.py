"""One training step of some rows of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.learner.learner import Batch, Learner
from consilience.learner.local_training import (
    last_batch_only,
    optimized_gradient,
    values_before_batch,
    with_rescaled_steps,
)
from consilience.learner.spec import OPTIMIZER
from consilience.learner.state import LearnerState, Tensors
from consilience.simulation.engines.cohort import Members
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.engines.stack.rows import ForAll, Rows, vmapped
from consilience.simulation.engines.stack.stacked_answers import one_received

GRADIENT = "gradient"
"""Among the rows' own values: the gradient summed over steps, where an exchange owns a part of the model."""


@dataclass(frozen=True, eq=False)
class StackedBatch:
    """The mini-batches of some rows."""

    positions: Tensor  # (rows, width) among each row's samples
    chosen: Tensor  # (rows, width) in the data
    active: Tensor | None  # (rows,) which rows have a step left; None if all have
    draws: Tensors  # (rows, draws, width) by who uses them
    private: tuple[Tensor, ...] = ()  # (rows, ...) each: what a private step needs beside

    def part(self, some: slice) -> StackedBatch:
        """Those of some of the rows."""
        return StackedBatch(
            self.positions[some],
            self.chosen[some],
            None if self.active is None else self.active[some],
            {owner: drawn[some] for owner, drawn in self.draws.items()},
            tuple(each[some] for each in self.private),
        )


class StackedStep:
    """How the rows of a stack take a step, and how any other work written for one learner is done for all of them."""

    for_all: ForAll = staticmethod(vmapped)

    def __init__(self, learner: Learner) -> None:
        self.learner, self.last_only = learner, last_batch_only(learner)

    def enter(self, members: Members, rows: np.ndarray, round_: int) -> None:
        """From now on steps are those of these rows of a cohort, in this round."""

    def before_recording(self, graph: torch.cuda.CUDAGraph) -> None:
        """Called before steps are recorded as a CUDA graph."""

    def after_failed_recording(self) -> None:
        """Called when steps could not be recorded."""

    def take(self, rows: Rows, batch: StackedBatch, data: SharedData) -> None:
        """Move the parameters of these rows; rows without a step left stay as they are."""
        learner, state, binding, active = rows.learner, rows.state, rows.learner.binding, batch.active
        inputs, targets = data.inputs[batch.chosen], data.targets[batch.chosen]
        views, buffers = binding.tensors(state)
        leaves = {name: self.leaf(view) for name, view in views.items()}
        buffers = {name: view.clone() for name, view in buffers.items()}  # changed in place, each in one piece
        follows = any(e.has_batch_hook for e in learner.exchanges)
        before = cloned(state.exchange_state) if follows and active is not None else {}

        def losses(
            state: dict[str, Any], own: Tensors, held: Any, parameters: Tensors, buffers: Tensors, *batch: Any
        ) -> tuple[Tensor, Tensor]:
            with learner.bound(LearnerState.from_dict(state), parameters, buffers):
                return learner.losses(Batch(*batch), own["samples"], one_received(held))

        loss, terms = rows.each(losses)(leaves, buffers, inputs, targets, batch.draws, batch.positions)
        found = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            self.move(rows, binding.parameters.flat(dict(zip(leaves, found, strict=True))), active)
            floating, others = binding.flat_buffers(buffers)
            copy_where(active, [(state.buffers, floating)] if floating is not None else [])
            copy_where(active, [(state.other_buffers[kind], flat) for kind, flat in others.items()])
            if active is not None:
                copy_where(~active, pairs(state.exchange_state, before))
            add_losses(rows, terms, active)

    def leaf(self, view: Tensor) -> Tensor:
        """A parameter of all rows, (rows, ...), of which the gradient is taken."""
        return view.detach().requires_grad_()

    def move(self, rows: Rows, gradient: Tensor, active: Tensor | None) -> None:
        """One optimizer for all rows, each with its own count of steps and, where it varies, its own settings."""
        learner, state = rows.learner, rows.state
        step = state.step + (1 if active is None else active.to(torch.int64))
        own = {name: value[:, None] for name, value in state.settings.get(OPTIMIZER, {}).items()}
        optimizer = learner.with_settings(learner.spec.optimizer, OPTIMIZER, {OPTIMIZER: own})
        local = optimized_gradient(learner, gradient)
        moved, slots = optimizer.update(state.parameters, local, dict(state.optimizer), step[:, None])
        moved = with_rescaled_steps(learner, state.parameters, moved)
        if GRADIENT in rows.own and learner.optimized is not None:
            if self.last_only is not None:
                gone = self.last_only if active is None else self.last_only & active[:, None]
                rows.own[GRADIENT].masked_fill_(gone, 0)
            rows.own[GRADIENT].add_(gradient if active is None else gradient * active[:, None])
            moved = torch.where(learner.optimized, moved, state.parameters)
        kept = [(state.optimizer[slot], value) for slot, value in slots.items()]
        copy_where(active, [(state.parameters, moved), (state.step, step), *kept])


@torch.no_grad()
def move_before_batch(rows: Rows, active: Tensor | None, progress: Tensor) -> None:
    """Move the parts that exchanges move before every batch; progress: as `values_before_batch` has it, (rows,)."""
    learner = rows.learner
    if not learner.moved_before_batches:
        return

    def one(state: dict[str, Any], own: Tensors, held: Any, progress: Tensor) -> Tensors:
        row = LearnerState.from_dict(state)
        with learner.bound(row, *learner.binding.tensors(row)):
            return values_before_batch(learner, one_received(held), progress)

    mine = learner.binding.tensors(rows.state)[0]
    copy_where(active, [(mine[name], value) for name, value in rows.each(one)(progress).items()])


def add_losses(rows: Rows, terms: Tensor, active: Tensor | None) -> None:
    """Add a step's losses to those of the round."""
    rows.losses.add_(terms if active is None else torch.where(active[:, None], terms, torch.zeros_like(terms)))


def copy_where(rows: Tensor | None, both: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first, in these rows only; in all where rows is None."""
    for old, new in both:
        chosen = None if rows is None else rows.reshape(-1, *(1,) * (old.ndim - 1))
        old.copy_(new if chosen is None else torch.where(chosen, new, old))


def cloned(tensors: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """A copy of tensors by owner and name."""
    return {owner: {k: t.clone() for k, t in named.items()} for owner, named in tensors.items()}


def pairs(old: Mapping[str, Tensors], new: Mapping[str, Tensors]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of old and new tensors with the same owner and name."""
    return [(old[owner][k], tensor) for owner, named in new.items() for k, tensor in named.items()]
