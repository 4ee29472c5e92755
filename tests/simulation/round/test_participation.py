"""Participation in a round: the same for one seed as for many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience import simulate
from consilience.config.config import make_config
from consilience.config.reachable import parse_reachable
from consilience.data import load
from consilience.errors import ConfigurationError
from consilience.simulation.round.participation import Presence, draw_presence
from consilience.simulation.setup.federations import Federations
from consilience.simulation.simulate import check_run

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


def planned(reachable: str, round_: int, learners: int = 5, offline: float = 0.0) -> list[int]:
    """Who can be reached in a round of one federation."""
    federations = Federations(
        (3,), learners, 1.0, offline, np.ones(learners, np.int64), (), reachable=parse_reachable(reachable)
    )
    there = draw_presence(federations, None, round_)
    assert there.participates.all(), "who cannot be reached trains on"
    return [int(who) for who in np.flatnonzero(there.online[0])]


def test_reachable_learners_by_plan() -> None:
    assert [planned("all", r) for r in (1, 2)] == [[0, 1, 2, 3, 4]] * 2
    assert [planned("fixed(2)", r) for r in (1, 2, 9)] == [[0, 1]] * 3
    assert [planned("turns(2)", r) for r in (1, 2, 3, 4)] == [[0, 1], [2, 3], [0, 4], [1, 2]]
    assert planned("turns(5)", 7) == [0, 1, 2, 3, 4] and planned("fixed(1)", 4) == [0]


def test_every_learner_has_as_many_turns() -> None:
    turns = np.bincount(np.concatenate([planned("turns(3)", r, learners=7) for r in range(1, 8)]))
    assert turns.tolist() == [3] * 7


def test_learners_of_the_plan_may_be_offline_too() -> None:
    assert planned("fixed(2)", 1, offline=1.0) == []
    online = set(planned("all", 5, learners=50, offline=0.5))
    assert planned("fixed(20)", 5, learners=50, offline=0.5) == sorted(online & set(range(20)))


@pytest.mark.parametrize("text", ["some", "fixed", "fixed(0)", "turns(1.5)", "turns(-1)", "all(2)"])
def test_plan_that_means_nothing_is_refused_when_made(text: str) -> None:
    with pytest.raises(ConfigurationError, match="reachable"):
        make_config({"reachable": text})


def test_plan_of_more_learners_than_there_are_is_refused() -> None:
    data = load("digits", train=60, test=20)
    with pytest.raises(
        ConfigurationError, match=r"reachable is 'turns\(6\)', and there are 5 learners; name at most 5"
    ):
        check_run(make_config({"reachable": "turns(6)", "method": {"name": "fedavg"}}), data)
    check_run(make_config({"reachable": "turns(5)", "method": {"name": "centralized"}}), data)


def test_learners_out_of_reach_train_on_with_their_last_download() -> None:
    """Learners 2 and 3 never get past the first answers: they share nothing in rounds, and still train."""
    data = load("digits", train=120, test=20)
    found = simulate(data=data, method="fedavg", learners=4, rounds=3, reachable="fixed(2)", workers=0)
    sent, loss = found.history["bytes.up"], found.history["loss.cross_entropy"]  # (rounds, federations, learners)
    assert (sent[1:, 0, :2] > 0).all() and not sent[1:, 0, 2:].any()
    assert (loss[-1, 0, 2:] < loss[1, 0, 2:]).all(), "they learn"
    alone = simulate(data=data, method="fedavg", learners=4, rounds=3, offline=1.0, workers=0)
    assert np.array_equal(found.history["accuracy"][-1, 0, 2:], alone.history["accuracy"][-1, 0, 2:])


def test_learners_exchange_if_they_participate_and_are_online() -> None:
    there = presence([4], 1, 20, 0.5, 0.5)
    expected = [bool(a and b) for a, b in zip(there.participates[0], there.online[0], strict=True)]
    assert there.exchanges[0].tolist() == expected and 0 < sum(expected) < 10
