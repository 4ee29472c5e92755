"""Participation in a round: the same for one seed as for many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from consilience.simulation.round.participation import Presence, draw_presence
from consilience.simulation.setup.federations import Federations

SEED = st.integers(0, 2**53)
ROUND = st.integers(1, 100)


def presence(seeds: Sequence[int], round_: int, learners: int, share: float, offline: float) -> Presence:
    federations = Federations(tuple(seeds), learners, share, offline, np.ones(learners, dtype=np.int64), ())
    return draw_presence(federations, None, round_)


@given(
    learners=st.integers(1, 30), share=st.floats(0.01, 1), seeds=st.lists(SEED, min_size=1, max_size=4), round_=ROUND
)
def test_participation_share_is_exact_and_independent_of_other_seeds(
    learners: int, share: float, seeds: list[int], round_: int
) -> None:
    there = presence(seeds, round_, learners, share, 0.3)
    assert (there.participates.sum(1) == max(1, round(share * learners))).all()
    for f, seed in enumerate(seeds):
        alone = presence([seed], round_, learners, share, 0.3)
        assert np.array_equal(alone.participates[0], there.participates[f])
        assert np.array_equal(alone.online[0], there.online[f])


def test_offline_share_of_zero_and_one() -> None:
    assert presence([0, 1], 1, 50, 0.5, 0.0).online.all()
    assert not presence([0, 1], 1, 50, 0.5, 1.0).online.any()


def test_offline_learners_are_drawn_per_round_and_seed() -> None:
    first, second = presence([0, 1], 1, 4000, 0.5, 0.3), presence([0, 1], 2, 4000, 0.5, 0.3)
    assert abs((~first.online).mean() - 0.3) < 0.03
    for a, b in ((first.online[0], first.online[1]), (first.online[0], second.online[0])):
        assert abs((a == b).mean() - (0.3**2 + 0.7**2)) < 0.05  # as often equal as independent draws
    for a, b in (
        (first.participates[0], first.participates[1]),
        (first.participates[0], second.participates[0]),
        (first.participates[0], first.online[0]),
    ):
        assert abs((a == b).mean() - 0.5) < 0.05


def test_learners_exchange_if_they_participate_and_are_online() -> None:
    there = presence([4], 1, 20, 0.5, 0.5)
    expected = [bool(a and b) for a, b in zip(there.participates[0], there.online[0], strict=True)]
    assert there.exchanges[0].tolist() == expected and 0 < sum(expected) < 10
