"""Where the random numbers of private learners come from: noise, and which samples a step draws.

In a simulation they are hashed from the seed like all others, so that runs can be repeated and resumed: nobody is
protected by a simulation, since whoever has the seed can subtract the noise. A member of a real federation must not use
numbers that others can compute: the relay knows the federation's seed and every member's number. Its numbers come from
the operating system's cryptographic generator, are used once, and are not saved.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from consilience.learner.batches import LearnerKey, StackedKeys
from consilience.randomness import normal, normal_from_uniform, uniform

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
        found: Tensor = normal_from_uniform(_secret_uniform(size), _secret_uniform(size))
        return found

    def uniform(self, purpose: str, key: LearnerKey, round_: int, step: int, size: int) -> Tensor:
        """Uniform numbers in [0, 1), (size,)."""
        return _secret_uniform(size)


def _secret_uniform(size: int) -> Tensor:
    bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)


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
