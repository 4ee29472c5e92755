"""Who works on which samples: the same for one learner as for a stack of them, and for one seed as for many."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.simulation.round.plan import batches, presences, stacked_batches, widths

SETTINGS = settings(max_examples=60, deadline=None)
SEED = st.integers(0, 2**53)
ROUND = st.integers(1, 100)


# --- batches


@SETTINGS
@given(
    sizes=st.lists(st.integers(2, 13), min_size=1, max_size=4),
    seed=SEED,
    round_=ROUND,
    batch=st.integers(2, 6),
    epochs=st.integers(1, 3),
    even=st.booleans(),
    least=st.integers(1, 2),
)
def test_a_stack_has_the_batches_of_each_learner(
    sizes: list[int], seed: int, round_: int, batch: int, epochs: int, even: bool, least: int
) -> None:
    """As far as a learner's own steps and the widths of its batches go."""
    who = np.arange(len(sizes)) + 5
    planned = [
        batches(seed, round_, int(w), size, batch, epochs, even=even, least=least)
        for w, size in zip(who, sizes, strict=True)
    ]
    most, size = max(map(len, planned)), torch.tensor(sizes)
    stacked = stacked_batches(
        torch.full((len(sizes),), seed),
        torch.tensor([round_]),
        torch.from_numpy(who),
        size,
        -(-size // batch),
        max(sizes),
        most,
        batch,
        epochs,
    )
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
def test_widths_are_those_of_the_batches(size: int, batch: int, epochs: int, even: bool, least: int) -> None:
    planned = batches(0, 1, 0, size, batch, epochs, even=even, least=least)
    assert widths(size, batch, epochs, even=even, least=least) == [len(b) for b in planned]


@pytest.mark.parametrize(
    "size, even, least, expected",
    [
        (10, True, 1, [4, 4, 2]),  # the last batch stays partial
        (9, True, 1, [4, 4, 1]),
        (9, True, 2, [4, 4, 2]),  # BatchNorm needs two
        (9, False, 1, [4, 4, 4]),  # filled up, so that unequal learners have batches of one width
        (8, True, 2, [4, 4]),
        (3, True, 1, [3]),
        (3, False, 1, [4]),
    ],
)
def test_how_wide_batches_are(size: int, even: bool, least: int, expected: list[int]) -> None:
    assert widths(size, 4, 2, even=even, least=least) == expected * 2


@pytest.mark.parametrize("even", [True, False])
def test_every_epoch_sees_every_sample_in_an_order_of_its_own(even: bool) -> None:
    planned = batches(3, 7, 1, 10, 4, 2, even=even, least=1)
    epochs = [np.concatenate(planned[:3]), np.concatenate(planned[3:])]
    for order in epochs:
        assert sorted(order[:10]) == list(range(10))
        assert order[10:].tolist() == order[: len(order) - 10].tolist()  # filled up from the same shuffle
    assert epochs[0].tolist() != epochs[1].tolist()


def test_a_batch_longer_than_the_data_goes_round_again() -> None:
    (only,) = batches(0, 1, 0, 3, 8, 1, even=False, least=1)
    assert only.tolist() == [*only[:3], *only[:3], *only[:2]] and sorted(only[:3]) == [0, 1, 2]


# --- presences


@given(
    learners=st.integers(1, 30), share=st.floats(0.01, 1), seeds=st.lists(SEED, min_size=1, max_size=4), round_=ROUND
)
def test_as_many_take_part_as_were_asked_for_and_in_any_company(
    learners: int, share: float, seeds: list[int], round_: int
) -> None:
    there = presences(seeds, round_, learners, share, 0.3)
    assert (there.participates.sum(1) == max(1, round(share * learners))).all()
    for f, seed in enumerate(seeds):
        alone = presences([seed], round_, learners, share, 0.3)
        assert np.array_equal(alone.participates[0], there.participates[f])
        assert np.array_equal(alone.online[0], there.online[f])


def test_nobody_or_everybody_is_offline() -> None:
    assert presences([0, 1], 1, 50, 0.5, 0.0).online.all()
    assert not presences([0, 1], 1, 50, 0.5, 1.0).online.any()


def test_a_share_is_offline_and_each_round_and_seed_has_its_own() -> None:
    first, second = presences([0, 1], 1, 4000, 0.5, 0.3), presences([0, 1], 2, 4000, 0.5, 0.3)
    assert abs((~first.online).mean() - 0.3) < 0.03
    for a, b in ((first.online[0], first.online[1]), (first.online[0], second.online[0])):
        assert abs((a == b).mean() - (0.3**2 + 0.7**2)) < 0.05  # no more alike than chance
    for a, b in (
        (first.participates[0], first.participates[1]),
        (first.participates[0], second.participates[0]),
        (first.participates[0], first.online[0]),
    ):
        assert abs((a == b).mean() - 0.5) < 0.05


def test_who_exchanges_both_trains_and_can_be_reached() -> None:
    there = presences([4], 1, 20, 0.5, 0.5)
    expected = [bool(a and b) for a, b in zip(there.participates[0], there.online[0], strict=True)]
    assert there.exchanges[0].tolist() == expected and 0 < sum(expected) < 10
