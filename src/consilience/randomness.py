"""Counter-based random numbers: a hash of where and when a number is needed, with no stream.

The same (seed, purpose, round, learner, index) gives the same bits in NumPy and in torch, in any order and in any
number of processes, so loop and stack, resumption and participation all see the same numbers. The mixing is
splitmix64's finalizer over 64-bit integers; both libraries wrap around on overflow.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

Array = Any

_MULTIPLY_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9 as a signed 64-bit number
_MULTIPLY_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_STEP = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15, the golden ratio

BEFORE_TRAINING, AFTER_TRAINING = -2, -1
"""In the place of a step's number, where numbers are drawn for all samples and not for a batch."""


def _shift(x: Array, places: int) -> Array:
    """Shift right and fill with zeros, which `>>` on signed numbers does not."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def _mix(x: Array) -> Array:
    x = (x ^ _shift(x, 30)) * _MULTIPLY_1
    x = (x ^ _shift(x, 27)) * _MULTIPLY_2
    return x ^ _shift(x, 31)


@cache
def purpose_key(purpose: str) -> int:
    """The hash of a purpose, as a signed 64-bit number."""
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little", signed=True)


def random_bits(purpose: str, *where: Array) -> Array:
    """64 random bits for each place; `where` are integers or integer arrays that broadcast against each other."""
    first, numbers = purpose_key(purpose), 0
    while numbers < len(where) and isinstance(where[numbers], int | np.integer):
        number = where[numbers]
        first = _mix_numbers(first, number if isinstance(number, int) else _wrap(int(number)))
        numbers += 1
    state: Array = np.asarray(first, dtype=np.int64).reshape(1)
    for coordinate in where[numbers:]:
        if isinstance(coordinate, int | np.integer | np.ndarray):
            coordinate = np.asarray(coordinate, dtype=np.int64)
        else:  # from the first torch tensor on, all is computed in torch, in 64 bits
            coordinate = coordinate.long()
            state = _as_torch(state, coordinate) if isinstance(state, np.ndarray) else state
        with np.errstate(over="ignore"):
            state = _mix(_combine(state, coordinate))
    return state


def _mix_numbers(state: int, coordinate: int) -> int:
    """As `_mix(_combine(...))` of arrays, but of two numbers: many times faster than NumPy is with one."""
    if not -(2**63) <= coordinate < 2**63:
        raise OverflowError(f"{coordinate} has more than 64 bits")
    x = _wrap(_combine(state, coordinate))
    x = _wrap((x ^ _shift(x, 30)) * _MULTIPLY_1)
    x = _wrap((x ^ _shift(x, 27)) * _MULTIPLY_2)
    return int(x ^ _shift(x, 31))


def _wrap(x: int) -> int:
    """The lowest 64 bits of a number, as a signed number."""
    return ((x + 2**63) & (2**64 - 1)) - 2**63


def _as_torch(x: np.ndarray, like: Array) -> Array:
    """The array as a tensor; one number is not copied from the CPU, which a CUDA graph could not capture."""
    return like.new_full(x.shape, int(x.item())) if x.size == 1 else like.new_tensor(x)


def _combine(state: Array, coordinate: Array) -> Array:
    if isinstance(coordinate, np.ndarray) and not isinstance(state, np.ndarray):
        coordinate = _as_torch(coordinate, state)
    return (state + _STEP) * 31 + coordinate * _STEP


def uniform(purpose: str, *where: Array) -> Array:
    """A float64 in [0, 1) for each place."""
    drawn = _shift(random_bits(purpose, *where), 11)
    xp = array_namespace(drawn)
    return xp.astype(drawn, xp.float64) * 2.0**-53


def uniform_by_sample(owner: str, shape: tuple[int, int], seed: int, round_: int, number: int, step: int) -> np.ndarray:
    """Uniform numbers of one learner, (draws, samples), for an exchange or objective by its name."""
    draws, samples = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    drawn: np.ndarray = uniform(f"draws {owner}", seed, round_, number, step, draws, samples)
    return drawn


def normal(purpose: str, *where: Array) -> Array:
    """A standard normal float64 for each place (Box and Muller 1958)."""
    radius, angle = uniform(f"{purpose} radius", *where), uniform(f"{purpose} angle", *where)
    return normal_from_uniform(radius, angle)


def normal_from_uniform(radius: Array, angle: Array) -> Array:
    """Standard normal numbers from two uniform ones in [0, 1) for each."""
    xp = array_namespace(radius)
    return xp.sqrt(-2.0 * xp.log(1.0 - radius)) * xp.cos(2.0 * math.pi * angle)


def coin_flips(purpose: str, turn: Array, like: Array) -> Array:
    """+1 or -1 for each place of an array of this type and shape, the same for every learner at that turn."""
    xp = array_namespace(like)
    places = xp.arange(math.prod(like.shape), device=device(like))
    heads = xp.reshape(random_bits(purpose, turn, places) & 1, like.shape) == 1
    return xp.where(heads, xp.ones_like(like), -xp.ones_like(like))


def seed_of(purpose: str, *where: int) -> int:
    """One non-negative seed, for generators of other libraries."""
    return int(_shift(random_bits(purpose, *where), 1)[0])
