"""Random numbers by hashing: the same bits everywhere, and random enough."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilience.randomness import purpose_key, random_bits, seed_of, uniform

WHOLE = st.integers(-(2**63), 2**63 - 1)


def splitmix(x: int) -> int:
    """The published finaliser, in plain unsigned arithmetic."""
    wrap = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wrap
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wrap
    return x ^ (x >> 31)


def by_hand(purpose: str, *where: int) -> int:
    golden, wrap = 0x9E3779B97F4A7C15, 2**64 - 1
    state = purpose_key(purpose) & wrap
    for coordinate in where:
        state = splitmix(((state + golden) * 31 + coordinate * golden) & wrap)
    return state - 2**64 if state >= 2**63 else state


# --- the same bits


def test_golden_values() -> None:
    """Runs are kept and resumed for years: these numbers may never change."""
    assert purpose_key("shuffle") == 378141527855607951
    assert random_bits("shuffle", 0, 1, 2).tolist() == [757941580450907400]
    assert random_bits("draws", 7, np.arange(3)).tolist() == [
        5572156696520387239,
        -2593520559464052650,
        -3092293367323079470,
    ]
    assert uniform("shuffle", 0, 1, 2).tolist() == [0.04108809540709846]
    assert seed_of("weights", 0, 3) == 7962978406651042973


@given(st.text(max_size=20), st.lists(WHOLE, min_size=1, max_size=5))
def test_bits_are_splitmix_in_numpy_and_in_torch(purpose: str, where: list[int]) -> None:
    expected = [by_hand(purpose, *where)]
    assert random_bits(purpose, *where).tolist() == expected
    assert random_bits(purpose, *(torch.tensor(w) for w in where)).tolist() == expected


@pytest.mark.parametrize("first", [np.arange(4), torch.arange(4)], ids=["numpy", "torch"])
@pytest.mark.parametrize("second", [np.arange(3), torch.arange(3)], ids=["numpy", "torch"])
def test_libraries_mix_in_any_order(first: Any, second: Any) -> None:
    mixed = random_bits("mix", 5, first[:, None], second[None, :])
    assert mixed.tolist() == [[by_hand("mix", 5, i, j) for j in range(3)] for i in range(4)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_narrow_torch_integers_give_the_same_bits(dtype: torch.dtype) -> None:
    expected = random_bits("narrow", 5, np.arange(3)).tolist()
    assert random_bits("narrow", 5, torch.arange(3, dtype=dtype)).tolist() == expected
    assert random_bits("narrow", torch.tensor(5), torch.arange(3, dtype=dtype)).tolist() == expected
    assert random_bits("narrow", torch.tensor(5, dtype=dtype), np.arange(3)).tolist() == expected


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8])
def test_narrow_numpy_integers_give_the_same_bits(dtype: Any) -> None:
    assert (
        random_bits("narrow", 5, np.arange(3, dtype=dtype)).tolist() == random_bits("narrow", 5, np.arange(3)).tolist()
    )


def test_uniform_is_the_same_float_in_both() -> None:
    ours, theirs = uniform("u", 1, np.arange(1000)), uniform("u", 1, torch.arange(1000))
    assert theirs.dtype == torch.float64
    assert ours.tolist() == theirs.tolist()


def test_places_broadcast_and_each_is_itself() -> None:
    grid = uniform("grid", 3, np.arange(4)[:, None], np.arange(5)[None, :])
    assert grid.shape == (4, 5)
    for i in range(4):
        for j in range(5):
            assert grid[i, j] == uniform("grid", 3, i, j)[0]


# --- random enough


@given(WHOLE)
def test_uniform_stays_below_one(seed: int) -> None:
    drawn = uniform("range", seed, np.arange(64))
    assert (drawn >= 0).all() and (drawn < 1).all()


def test_uniform_is_uniform() -> None:
    drawn = uniform("spread", 0, np.arange(40_000))
    assert abs(drawn.mean() - 0.5) < 4 / np.sqrt(12 * 40_000)  # four standard errors
    assert abs(drawn.var() - 1 / 12) < 0.002
    tenths = np.bincount((drawn * 10).astype(int), minlength=10)
    assert (abs(tenths - 4_000) < 5 * np.sqrt(4_000 * 0.9)).all()
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.02  # neighbors know nothing of each other


def test_every_bit_is_set_half_of_the_time() -> None:
    drawn = random_bits("bits", 1, np.arange(20_000)).view(np.uint64)
    share = [((drawn >> np.uint64(b)) & np.uint64(1)).mean() for b in range(64)]
    assert np.allclose(share, 0.5, atol=0.02)


def test_purpose_seed_round_and_learner_each_matter() -> None:
    index = np.arange(500)
    streams = {
        "as it is": uniform("a", 0, 0, 0, index),
        "purpose": uniform("b", 0, 0, 0, index),
        "seed": uniform("a", 1, 0, 0, index),
        "round": uniform("a", 0, 1, 0, index),
        "learner": uniform("a", 0, 0, 1, index),
        "negative": uniform("a", 0, 0, -1, index),
    }
    for (one, x), (other, y) in combinations(streams.items(), 2):
        assert not (x == y).any(), (one, other)
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.2, (one, other)


def test_order_of_coordinates_matters() -> None:
    assert random_bits("order", 1, 2).tolist() != random_bits("order", 2, 1).tolist()
    assert random_bits("order", 0).tolist() != random_bits("order", 0, 0).tolist()


def test_a_million_places_do_not_collide() -> None:
    drawn = random_bits("collide", np.arange(1000)[:, None], np.arange(1000)[None, :])
    assert len(np.unique(drawn)) == 1_000_000


def test_seeds_fit_any_generator() -> None:
    seeds = [seed_of("weights", 0, learner) for learner in range(200)]
    assert len(set(seeds)) == 200
    assert all(0 <= s < 2**63 for s in seeds)
    torch.Generator().manual_seed(max(seeds))
