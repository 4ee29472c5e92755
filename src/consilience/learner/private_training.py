"""Private steps: the gradient of each sample by itself, clipped, summed, and noised (DP-SGD, Abadi et al. 2016).

Every sample is drawn for a step with its probability and independently of the others: Poisson sampling, on which the
accounting relies. It is the same for all samples but those with a smaller privacy budget of their own. A batch
therefore has another size at each step, in tensors of one size: what is not drawn counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from consilience.exchanges.base import Received
from consilience.functional.noise import private_gradient
from consilience.learner.learner import Batch, Learner
from consilience.learner.state import Tensors


def draw_batch(chance: Tensor, rate: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Positions of the samples that are drawn, and which of the places hold one, (..., capacity) each.

    chance: (..., samples) uniform numbers; a sample is drawn where its is below its rate, (..., samples), or (..., 1)
    where all have one.
    """
    samples, drawn = torch.arange(chance.shape[-1], device=chance.device), chance < rate
    positions = torch.where(drawn, samples, samples + chance.shape[-1]).argsort(dim=-1)[..., :capacity]
    return positions, drawn.gather(-1, positions)


def private_losses(
    learner: Learner,
    tensors: tuple[Tensors, Tensors],
    batch: Batch,
    samples: Tensor,
    received: Mapping[str, Received],
) -> tuple[Tensor, Tensor]:
    """The noised gradient of a step, (parameters,), and means of what `Learner.losses` returns over the samples drawn.

    tensors: the learner's parameters and buffers by name. Its state must be bound. What is not a gradient stays with
    the learner, and has no noise.
    """
    (parameters, buffers), state, step = tensors, learner.state, batch.private
    assert learner.spec.privacy is not None and step is not None
    moving = {name: p.detach() for name, p in parameters.items()}

    def of_one(moving: Tensors, inputs: Tensor, target: Tensor, draws: Tensors, position: Tensor) -> Any:
        one = Batch(inputs[None], target[None], {k: d[:, None] for k, d in draws.items()}, position[None])
        with learner.bound(state, moving, buffers):
            return learner.losses(one, samples, received)

    every = vmap(grad_and_value(of_one, has_aux=True), in_dims=(None, 0, 0, 1, 0), randomness="different")
    found, (_, terms) = every(moving, batch.inputs, batch.targets, dict(batch.draws), batch.positions)
    gradients = learner.binding.parameters.flat(found)  # (rows, parameters)
    gradient = private_gradient(
        gradients, step.drawn, learner.spec.privacy.clip, step.noise, step.normal, step.expected
    )
    terms = torch.where(step.drawn[:, None], terms, torch.zeros_like(terms))
    return gradient, terms.sum(0) / step.drawn.sum().clamp(min=1)
