"""Where the random numbers of private learners come from: noise, and which samples a step draws.

In a simulation they are hashed from the seed like all others, so that runs can be repeated and resumed: nobody is
protected by a simulation, since whoever has the seed can subtract the noise. A member of a real federation must not use
numbers that others can compute: the relay knows the federation's seed and every member's number. Its numbers come from
the operating system's cryptographic generator, are used once, and are not saved.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from consilience.learner.batches import LearnerKey, StackedKeys
from consilience.privacy.secret_noise import secret_normal, secret_uniform
from consilience.randomness import normal, uniform

UPLOAD_NOISE, STEP_NOISE, SAMPLING = "private upload", "private step", "private sampling"
UPLOAD_SAMPLING = "private upload sampling"
"""Purposes of random numbers."""


class NoiseSource(Protocol):
    """Gives one learner its random numbers, float64 on the CPU."""

    def normal(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> Tensor:
        """Standard normal numbers, (size,)."""
        ...

    def uniform(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> Tensor:
        """Uniform numbers in [0, 1), (size,)."""
        ...


class HashedNoise:
    """For simulations: numbers that depend on the seed, the learner, the round and the step alone."""

    def normal(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> Tensor:
        """Standard normal numbers, (size,)."""
        found: Tensor = normal(purpose, key.seed, round_, key.number, step, torch.arange(size))
        return found

    def uniform(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> Tensor:
        """Uniform numbers in [0, 1), (size,)."""
        found: Tensor = uniform(purpose, key.seed, round_, key.number, step, torch.arange(size))
        return found


class SecretNoise:
    """For members of real federations: numbers of the operating system's cryptographic generator."""

    def normal(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> Tensor:
        """Standard normal numbers, (size,)."""
        return torch.from_numpy(secret_normal(size))

    def uniform(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> Tensor:
        """Uniform numbers in [0, 1), (size,)."""
        return torch.from_numpy(secret_uniform(size))


def stacked_normal(purpose: str, keys: StackedKeys, round_: Tensor, step: Tensor, size: int) -> Tensor:
    """The numbers of `HashedNoise.normal` for many learners at once, (learners, size)."""
    where = torch.arange(size, device=keys.seed.device)
    found: Tensor = normal(purpose, keys.seed[:, None], round_, keys.number[:, None], step, where)
    return found


def stacked_uniform(purpose: str, keys: StackedKeys, round_: Tensor, step: Tensor, size: int) -> Tensor:
    """The numbers of `HashedNoise.uniform` for many learners at once, (learners, size)."""
    where = torch.arange(size, device=keys.seed.device)
    found: Tensor = uniform(purpose, keys.seed[:, None], round_, keys.number[:, None], step, where)
    return found


SIMULATED, SECRET = HashedNoise(), SecretNoise()
