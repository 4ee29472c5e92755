"""Local training: the steps of a round, for the learner whose state is bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from consilience.exchanges.base import Received
from consilience.exchanges.owning import OwningExchange
from consilience.learner.device import widest_float
from consilience.learner.learner import Batch, Learner
from consilience.learner.private_training import private_losses
from consilience.optimizers import update_in_place


def train(
    learner: Learner, batches: Iterable[Batch], samples: int, received: Mapping[str, Received]
) -> tuple[Tensor, Tensor | None]:
    """One step per batch: means over the batches of what `Learner.losses` returns, and of the gradient.

    The gradient is None where the local optimizer changes all parameters: nothing uses it then. Of parts that move
    before every batch it is the last batch's.
    """
    learner.modules.set_training(True)
    losses = torch.zeros(len(learner.loss_terms) + 1, dtype=widest_float(learner.device), device=learner.device)
    mean_gradient = zero_gradient(learner)
    steps, count, last_only = 0, learner.count(samples), last_batch_only(learner)
    for batch in batches:
        progress = torch.full((), batch.progress, dtype=learner.dtype, device=learner.device)
        learner.binding.assign(values_before_batch(learner, received, progress))
        take_step = _step if batch.private is None else _private_step
        losses += take_step(learner, batch, count, received, mean_gradient)
        if mean_gradient is not None and last_only is not None:
            mean_gradient.copy_(torch.where(last_only, learner.binding.gradient, mean_gradient))
        steps += 1
    if mean_gradient is not None and steps:
        mean_gradient /= steps if last_only is None else torch.where(last_only, 1, steps)
    return losses / max(steps, 1), mean_gradient


def values_before_batch(learner: Learner, received: Mapping[str, Received], progress: Tensor) -> dict[str, Tensor]:
    """Parameters that exchanges move before a mini-batch, by name.

    progress: which part of the round's batches are done after it, above 0 to 1.
    """
    found: dict[str, Tensor] = {}
    for e in learner.exchanges:
        if isinstance(e, OwningExchange) and e.name in learner.moved_before_batches & learner.downloading:
            found |= e.values_before_batch(received[e.name], progress)
    return found


def last_batch_only(learner: Learner) -> Tensor | None:
    """(parameters,) of which parameters only the last batch's gradient is kept; None where it is of none."""
    parts = [e.owned_part for e in learner.exchanges if e.name in learner.moved_before_batches]
    names = {name for part in parts if part for name in learner.task.covered(part, learner.task.parameters)}
    return learner.binding.parameters.mask(names).to(learner.device) if names else None


def zero_gradient(learner: Learner) -> Tensor | None:
    """The mean gradient of a round without a step; None where nothing uses it."""
    return None if learner.optimized is None else torch.zeros_like(learner.binding.gradient)


def _step(
    learner: Learner, batch: Batch, samples: Tensor, received: Mapping[str, Received], summed: Tensor | None
) -> Tensor:
    loss, terms = learner.losses(batch, samples, received)
    learner.binding.gradient.zero_()
    loss.backward()  # type: ignore[no-untyped-call]
    _optimizer_step(learner, summed)
    return terms


def _private_step(
    learner: Learner, batch: Batch, samples: Tensor, received: Mapping[str, Received], summed: Tensor | None
) -> Tensor:
    tensors = learner.binding.tensors(learner.state)
    gradient, terms = private_losses(learner, tensors, batch, samples, received)
    learner.binding.gradient.copy_(gradient)
    _optimizer_step(learner, summed)
    return terms


def _optimizer_step(learner: Learner, summed: Tensor | None) -> None:
    """Move the parameters by the gradient, and add the gradient to the round's sum where it is kept."""
    state, gradient = learner.state, learner.binding.gradient
    before = None if learner.rescaled is None else state.parameters[learner.rescaled].clone()
    state.step += 1
    own = optimized_gradient(learner, gradient)
    if summed is not None:
        summed += gradient
    update_in_place(learner.optimizer, state.parameters, own, state.optimizer, int(state.step), learner.optimized)
    if before is not None:
        moved = state.parameters[learner.rescaled]
        moved.copy_(rescaled_step(learner, before, moved))


def optimized_gradient(learner: Learner, gradient: Tensor) -> Tensor:
    """The gradient, (..., parameters), that the local optimizer gets.

    Where it clips, it is zero for parameters that exchanges move: their part does not count into the norm.
    """
    if learner.optimized is None or learner.optimizer.clip is None:
        return gradient
    return torch.where(learner.optimized, gradient, torch.zeros_like(gradient))


def with_rescaled_steps(learner: Learner, before: Tensor, moved: Tensor) -> Tensor:
    """Parameters after a step, (..., parameters), `rescaled_modules` by their own steps; before: those before."""
    if learner.rescaled is not None:
        own = before[..., learner.rescaled], moved[..., learner.rescaled]
        moved[..., learner.rescaled] = rescaled_step(learner, *own)
    return moved


def rescaled_step(learner: Learner, before: Tensor, moved: Tensor) -> Tensor:
    """Where `rescaled_modules` are after a step of their own length, (..., their parameters)."""
    return before + learner.role.objective.step_factor(learner.task) * (moved - before)


def reset_optimizer(learner: Learner) -> None:
    """Forget the optimizer's state."""
    for tensor in (learner.state.step, *learner.state.optimizer.values()):
        tensor.zero_()
