"""Random numbers of the operating system's cryptographic generator, for members of real federations.

The relay knows the federation's seed and every member's number: noise from hashed numbers it could subtract.
"""

from __future__ import annotations

import os

import numpy as np

from consilience.randomness import normal_from_uniform


def secret_uniform(size: int) -> np.ndarray:
    """Uniform numbers in [0, 1), (size,), float64."""
    bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
    drawn: np.ndarray = bits.astype(np.float64) * 2.0**-53
    return drawn


def secret_normal(size: int) -> np.ndarray:
    """Standard normal numbers, (size,), float64."""
    drawn: np.ndarray = normal_from_uniform(secret_uniform(size), secret_uniform(size))
    return drawn
