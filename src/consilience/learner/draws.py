"""Random numbers for exchanges and objectives: drawn outside of them, by hashing, the same in any engine or process."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.learner.batches import LearnerKey, StackedKeys
from consilience.randomness import uniform, uniform_by_sample


def draw_uniform(owner: str, shape: tuple[int, int], key: LearnerKey, round_: int, step: int) -> Tensor:
    """Uniform numbers in [0, 1) of this shape, (draws, samples), for an exchange or objective by its name."""
    return torch.from_numpy(uniform_by_sample(owner, shape, key.seed, round_, key.number, step))


def draw_stacked_uniform(owner: str, shape: tuple[int, int], keys: StackedKeys, round_: Tensor, step: Tensor) -> Tensor:
    """The same numbers for many learners at once, (learners, draws, samples)."""
    device = keys.seed.device
    across = torch.arange(shape[0], device=device)[:, None], torch.arange(shape[1], device=device)
    seed, number = keys.seed[:, None, None], keys.number[:, None, None]
    drawn: Tensor = uniform(f"draws {owner}", seed, round_, number, step, *across)
    return drawn
