"""Random numbers for exchanges and objectives: drawn outside of them, by hashing, the same in any engine or process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from consilience.learner.batches import LearnerKey, StackedKeys
from consilience.randomness import uniform

BEFORE_TRAINING, AFTER_TRAINING = -2, -1
"""In the place of a step's number, where numbers are drawn for all samples and not for a batch."""


def draw_uniform(owner: str, shape: tuple[int, int], key: LearnerKey, round_: int, step: int) -> Tensor:
    """Uniform numbers in [0, 1) of this shape, (draws, samples), for an exchange or objective by its name."""
    draws, samples = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    return torch.from_numpy(uniform(f"draws {owner}", key.seed, round_, key.number, step, draws, samples))


def draw_stacked_uniform(owner: str, shape: tuple[int, int], keys: StackedKeys, round_: Tensor, step: Tensor) -> Tensor:
    """The same numbers for many learners at once, (learners, draws, samples)."""
    device = keys.seed.device
    across = torch.arange(shape[0], device=device)[:, None], torch.arange(shape[1], device=device)
    seed, number = keys.seed[:, None, None], keys.number[:, None, None]
    drawn: Tensor = uniform(f"draws {owner}", seed, round_, number, step, *across)
    return drawn
