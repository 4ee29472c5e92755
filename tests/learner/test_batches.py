"""The mini-batches of a round: the same for a single learner as in a stack."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.learner.batches import (
    LearnerKey,
    LocalWork,
    StackedKeys,
    batch_widths,
    plan_batches,
    plan_stacked_batches,
)

SETTINGS = settings(max_examples=60, deadline=None)


def work(batch: int, epochs: int, least: int, order: int = 0) -> LocalWork:
    return LocalWork(batch, epochs, least, reset_optimizer=False, batch_order=order)


@SETTINGS
@given(
    sizes=st.lists(st.integers(2, 13), min_size=1, max_size=4),
    seed=st.integers(0, 2**53),
    round_=st.integers(1, 100),
    batch=st.integers(2, 6),
    epochs=st.integers(1, 3),
    even=st.booleans(),
    least=st.integers(1, 2),
    order=st.integers(0, 1),
)
def test_stacked_batches_equal_those_of_each_learner(
    sizes: list[int], seed: int, round_: int, batch: int, epochs: int, even: bool, least: int, order: int
) -> None:
    """For each learner's own number of steps and batch widths."""
    who = np.arange(len(sizes)) + 5
    planned = [
        plan_batches(work(batch, epochs, least, order), LearnerKey(seed, int(w)), round_, size, even=even)
        for w, size in zip(who, sizes, strict=True)
    ]
    most, size = max(map(len, planned)), torch.tensor(sizes)
    keys = StackedKeys(torch.full((len(sizes),), seed), torch.from_numpy(who), size, -(-size // batch))
    stacked = plan_stacked_batches(work(batch, epochs, least, order), keys, torch.tensor([round_]), max(sizes), most)
    assert stacked.shape == (most, len(sizes), batch)
    assert ((stacked >= 0) & (stacked < size[:, None])).all(), "even what is not used lies among a learner's samples"
    for i, mine in enumerate(planned):
        assert [stacked[step, i, : len(b)].tolist() for step, b in enumerate(mine)] == [b.tolist() for b in mine]


@SETTINGS
@given(
    size=st.integers(2, 40),
    batch=st.integers(2, 12),
    epochs=st.integers(1, 3),
    even=st.booleans(),
    least=st.integers(1, 2),
)
def test_batch_widths_equal_those_of_the_batches(size: int, batch: int, epochs: int, even: bool, least: int) -> None:
    planned = plan_batches(work(batch, epochs, least), LearnerKey(0, 0), 1, size, even=even)
    assert batch_widths(work(batch, epochs, least), size, even=even) == [len(b) for b in planned]


@pytest.mark.parametrize(
    "size, even, least, expected",
    [
        (10, True, 1, [4, 4, 2]),  # the last batch stays partial
        (9, True, 1, [4, 4, 1]),
        (9, True, 2, [4, 4, 2]),  # BatchNorm needs two
        (9, False, 1, [4, 4, 4]),  # padded, so that unequal learners have batches of one width
        (8, True, 2, [4, 4]),
        (3, True, 1, [3]),
        (3, False, 1, [4]),
    ],
)
def test_batch_widths_by_hand(size: int, even: bool, least: int, expected: list[int]) -> None:
    assert batch_widths(work(4, 2, least), size, even=even) == expected * 2


@pytest.mark.parametrize("even", [True, False])
def test_every_epoch_uses_every_sample_in_a_new_order(even: bool) -> None:
    planned = plan_batches(work(4, 2, 1), LearnerKey(3, 1), 7, 10, even=even)
    epochs = [np.concatenate(planned[:3]), np.concatenate(planned[3:])]
    for order in epochs:
        assert sorted(order[:10]) == list(range(10))
        assert order[10:].tolist() == order[: len(order) - 10].tolist()  # padded from the same permutation
    assert epochs[0].tolist() != epochs[1].tolist()


def test_batch_larger_than_the_data_repeats_samples() -> None:
    (only,) = plan_batches(work(8, 1, 1), LearnerKey(0, 0), 1, 3, even=False)
    assert only.tolist() == [*only[:3], *only[:3], *only[:2]] and sorted(only[:3]) == [0, 1, 2]


def test_every_batch_order_is_another_shuffle_of_the_same_samples() -> None:
    orders = [plan_batches(work(4, 1, 1, order), LearnerKey(0, 0), 1, 12, even=True) for order in (0, 1, 2)]
    shuffles = [np.concatenate(each).tolist() for each in orders]
    assert all(sorted(each) == list(range(12)) for each in shuffles)
    assert len({tuple(each) for each in shuffles}) == 3
