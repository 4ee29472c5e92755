"""Partitions: every sample is assigned to exactly one learner, in the requested shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.data.partition import FORMS, class_counts, dirichlet_shares, even_turns, partition_samples
from consilience.errors import ConfigurationError, UnknownName

SETTINGS = settings(max_examples=60, deadline=None)
ALPHAS = st.floats(1e-300, 1e300) | st.sampled_from([5e-324, 1e-12, 1e-3, 0.01, 1.0, 100.0, 1.7e308])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def local(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Targets, and a number of learners with at least one sample each."""
    targets = draw(st.lists(st.integers(0, 9), min_size=1, max_size=120))
    return np.array(targets, dtype=np.int64), draw(st.integers(1, len(targets)))


def check_every_sample_once(targets: np.ndarray, parts: list[np.ndarray], learners: int) -> None:
    assert len(parts) == learners
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(targets)))
    for part in parts:
        assert part.dtype == np.int64 and part.ndim == 1 and np.all(np.diff(part) > 0)


# --- iid


@SETTINGS
@given(local(), st.integers(0, 2**32))
def test_iid_parts_are_even_in_size_and_per_class(case: tuple[np.ndarray, int], seed: int) -> None:
    targets, learners = case
    parts = partition_samples(targets, learners, "iid", rng(seed))
    check_every_sample_once(targets, parts, learners)
    assert np.ptp([len(part) for part in parts]) <= 1
    assert np.ptp(class_counts(targets, parts, 10), axis=0).max() <= 1


def test_iid_by_hand() -> None:
    targets = np.array([1, 0, 1, 0, 1, 0, 1])
    parts = partition_samples(targets, 2, "iid", rng())
    # Three of class 0 go to learners 0, 1, 0; then the four of class 1 to 1, 0, 1, 0.
    assert class_counts(targets, parts, 2).tolist() == [[2, 2], [1, 2]]


def test_iid_parts_are_equal_if_sizes_divide() -> None:
    targets = np.repeat(np.arange(10), 120)
    assert (class_counts(targets, partition_samples(targets, 10, "iid", rng()), 10) == 12).all()


def test_iid_is_shuffled() -> None:
    targets = np.zeros(100, dtype=np.int64)
    one, other = (partition_samples(targets, 2, "iid", rng(seed))[0].tolist() for seed in (1, 2))
    assert one != other and one != list(range(0, 100, 2))


# --- dirichlet


@SETTINGS
@given(local(), ALPHAS, st.integers(0, 2**32), st.integers(1, 6))
def test_dirichlet_assigns_every_sample_once_and_keeps_the_minimum(
    case: tuple[np.ndarray, int], alpha: float, seed: int, minimum: int
) -> None:
    targets, learners = case
    parts = partition_samples(targets, learners, f"dirichlet({alpha})", rng(seed), minimum=minimum)
    check_every_sample_once(targets, parts, learners)
    assert min(map(len, parts)) >= min(minimum, len(targets) // learners)


@pytest.mark.parametrize(
    "how", ["iid", "dirichlet(0.3)", "dirichlet(1e-6)", "shards(2)", "quantity(0.3)", "shares(1, 2, 3, 4, 5, 6, 7)"]
)
def test_partition_is_deterministic_for_a_generator(how: str) -> None:
    targets = rng(5).integers(0, 10, 500)
    one, two, other = (partition_samples(targets, 7, how, rng(seed)) for seed in (1, 1, 2))
    assert [p.tolist() for p in one] == [p.tolist() for p in two]
    assert [p.tolist() for p in one] != [p.tolist() for p in other]


def test_both_spellings_of_dirichlet_are_equal() -> None:
    targets = rng(5).integers(0, 10, 200)
    spellings = ("dirichlet(0.5)", "dirichlet:0.5", "dirichlet(5e-1)", "dirichlet( .5 )")
    parts = [[p.tolist() for p in partition_samples(targets, 4, how, rng())] for how in spellings]
    assert all(each == parts[0] for each in parts)


@pytest.mark.parametrize("alpha", ["1e-3", "1e-6", "1e-100", "5e-324"])
def test_tiny_alpha_assigns_each_class_to_one_learner(alpha: str) -> None:
    targets = np.repeat(np.arange(10), 50)
    parts = partition_samples(targets, 5, f"dirichlet({alpha})", rng(1))
    check_every_sample_once(targets, parts, 5)
    table = class_counts(targets, parts, 10)
    assert (table.max(axis=0) >= 40).all()  # except samples moved to reach the minimum
    assert table.sum(axis=1).min() >= 2


def test_huge_alpha_gives_equal_shares() -> None:
    targets = np.repeat(np.arange(10), 50)
    for alpha in ("1e9", "1.7e308"):
        assert (class_counts(targets, partition_samples(targets, 5, f"dirichlet({alpha})", rng()), 10) == 10).all()


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_shares_have_the_moments_of_a_dirichlet(alpha: float) -> None:
    generator, learners, draws = rng(7), 4, 20_000
    shares = np.stack([dirichlet_shares(alpha, learners, generator) for _ in range(draws)])  # (draws, learners)
    variance = (1 / learners) * (1 - 1 / learners) / (learners * alpha + 1)
    error = 4 * (variance / draws) ** 0.5
    assert shares.mean(axis=0) == pytest.approx(np.full(learners, 1 / learners), abs=error)
    assert shares.var(axis=0) == pytest.approx(np.full(learners, variance), rel=0.06)


@SETTINGS
@given(ALPHAS, st.integers(1, 50), st.integers(0, 2**32))
def test_shares_always_sum_to_one(alpha: float, learners: int, seed: int) -> None:
    shares = dirichlet_shares(alpha, learners, rng(seed))
    assert shares.shape == (learners,) and (shares >= 0).all() and shares.sum() == pytest.approx(1)


def test_heterogeneity_decreases_with_alpha() -> None:
    targets = np.repeat(np.arange(10), 200)

    def spread(alpha: float) -> float:
        tables = [
            class_counts(targets, partition_samples(targets, 10, f"dirichlet({alpha})", rng(s)), 10) for s in range(20)
        ]
        return float(np.mean([table.std(axis=0) for table in tables]))

    assert spread(0.01) > spread(0.1) > spread(1) > spread(10) > spread(100)


def test_learners_below_the_minimum_take_from_the_largest() -> None:
    targets = np.zeros(10, dtype=np.int64)  # one class and a tiny alpha: one learner gets all ten
    sizes = sorted(len(part) for part in partition_samples(targets, 4, "dirichlet(1e-9)", rng()))
    assert sizes == [2, 2, 2, 4]
    sizes = sorted(len(part) for part in partition_samples(targets, 4, "dirichlet(1e-9)", rng(), minimum=1))
    assert sizes == [1, 1, 1, 7]


def test_every_learner_has_a_sample_if_the_minimum_is_impossible() -> None:
    parts = partition_samples(np.zeros(7, dtype=np.int64), 5, "dirichlet(1e-9)", rng(), minimum=3)
    assert sorted(map(len, parts)) == [1, 1, 1, 1, 3]


def test_partition_of_a_thousand_learners_is_fast() -> None:
    targets = np.arange(60_000) % 10
    parts = partition_samples(targets, 1000, "dirichlet(0.001)", rng())
    check_every_sample_once(targets, parts, 1000)
    assert min(map(len, parts)) == 2


def test_single_learner_gets_all_samples() -> None:
    for how in ("iid", "dirichlet(0.1)", "shards(2)", "quantity(0.1)", "shares(7)"):
        assert partition_samples(np.array([3, 1, 2]), 1, how, rng())[0].tolist() == [0, 1, 2]


# --- shards


@SETTINGS
@given(local(), st.integers(1, 4), st.integers(0, 2**32))
def test_every_learner_gets_the_same_number_of_shards(case: tuple[np.ndarray, int], each: int, seed: int) -> None:
    targets, learners = case
    if learners * each > len(targets):
        with pytest.raises(ConfigurationError, match=f"{learners} learners x {each} shards need as many samples"):
            partition_samples(targets, learners, f"shards({each})", rng(seed))
        return
    parts = partition_samples(targets, learners, f"shards({each})", rng(seed))
    check_every_sample_once(targets, parts, learners)
    assert np.ptp([len(part) for part in parts]) <= each  # shards differ by at most one sample


def test_shards_by_hand() -> None:
    targets = np.array([4, 9, 4, 9, 7, 7, 7, 4, 9])  # three classes of three, in three shards
    parts = partition_samples(targets, 3, "shards(1)", rng())
    assert sorted(part.tolist() for part in parts) == [[0, 2, 7], [1, 3, 8], [4, 5, 6]]


def test_learner_has_at_most_as_many_classes_as_shards() -> None:
    targets = np.arange(1000) % 10
    table = class_counts(targets, partition_samples(targets, 10, "shards(2)", rng(3)), 10)
    assert (table.sum(axis=1) == 100).all() and (np.count_nonzero(table, axis=1) <= 2).all()
    assert set(np.unique(table)) <= {0, 50, 100}
    other = class_counts(targets, partition_samples(targets, 10, "shards(2)", rng(4)), 10)
    assert table.tolist() != other.tolist()


def test_too_many_shards_are_refused() -> None:
    for k in ("3", "1e300"):
        with pytest.raises(ConfigurationError, match=r"shards need as many samples, and there are 5; use fewer"):
            partition_samples(np.zeros(5, dtype=np.int64), 2, f"shards({k})", rng())


# --- sizes


def check_stratified(targets: np.ndarray, parts: list[np.ndarray]) -> None:
    """Every learner has each class in its global share, except for rounding at both ends of the class."""
    table = class_counts(targets, parts, int(targets.max()) + 1)
    even = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / len(targets)
    assert np.abs(table - even).max() < 2


@SETTINGS
@given(local(), ALPHAS, st.integers(0, 2**32), st.integers(1, 6))
def test_quantity_changes_only_sizes(case: tuple[np.ndarray, int], alpha: float, seed: int, minimum: int) -> None:
    targets, learners = case
    parts = partition_samples(targets, learners, f"quantity({alpha})", rng(seed), minimum=minimum)
    check_every_sample_once(targets, parts, learners)
    assert min(map(len, parts)) >= min(minimum, len(targets) // learners)
    check_stratified(targets, parts)


def test_quantity_spread_decreases_with_alpha() -> None:
    targets = np.arange(2000) % 10

    def spread(alpha: float) -> float:
        return float(
            np.mean(
                [
                    np.std([len(p) for p in partition_samples(targets, 10, f"quantity:{alpha}", rng(s))])
                    for s in range(20)
                ]
            )
        )

    assert spread(0.1) > spread(1) > spread(10) > spread(1000)
    assert {len(p) for p in partition_samples(targets, 10, "quantity(1e300)", rng())} == {200}


@SETTINGS
@given(st.data(), local(), st.integers(0, 2**32))
def test_shares_are_exact_to_one_sample(data: st.DataObject, case: tuple[np.ndarray, int], seed: int) -> None:
    targets, learners = case
    numbers = st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 1.7e308]) | st.floats(0, 10)
    shares = data.draw(st.lists(numbers, min_size=learners, max_size=learners).filter(any))
    parts = partition_samples(targets, learners, f"shares({', '.join(map(str, shares))})", rng(seed), minimum=1)
    check_every_sample_once(targets, parts, learners)
    check_stratified(targets, parts)
    scaled = np.array(shares) / max(shares)  # (learners,)
    wanted = len(targets) * scaled / scaled.sum()  # (learners,)
    if wanted.min() >= 1.5:  # no learner is below the minimum after rounding
        assert np.abs(np.array([len(part) for part in parts]) - wanted).max() < 1.001


def test_shares_by_hand() -> None:
    targets = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1])
    parts = partition_samples(targets, 3, "shares(0.5, 0.25, 0.25)", rng())
    assert class_counts(targets, parts, 2).tolist() == [[2, 4], [1, 2], [1, 2]]
    assert class_counts(targets, partition_samples(targets, 3, "shares:2,1,1", rng()), 2).tolist() == [
        [2, 4],
        [1, 2],
        [1, 2],
    ]


def test_share_of_zero_gives_the_minimum() -> None:
    parts = partition_samples(np.zeros(10, dtype=np.int64), 3, "shares(1, 0, 0)", rng())
    assert [len(part) for part in parts] == [6, 2, 2]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shares(1, 1)", "partition 'shares\\(1, 1\\)': 2 shares for 3 learners; give one share for each learner"),
        ("shares(1, 1, 1, 1)", "4 shares for 3 learners"),
        ("shares(0, 0, 0)", "all shares are 0"),
        ("shares(1, -1, 1)", "partition 'shares\\(1, -1, 1\\)': A must be a finite number, 0 or more, got '-1'"),
        ("shares(1, nan, 1)", "got 'nan'"),
        ("shares(1, 1, inf)", "got 'inf'"),
        ("shares()", "A must be a finite number, 0 or more, got ''"),
        ("shares(1,,1)", "got ''"),
    ],
)
def test_invalid_shares_are_refused(how: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        partition_samples(np.zeros(9, dtype=np.int64), 3, how, rng())


@SETTINGS
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
def test_even_turns_are_even_in_every_prefix(sizes: list[int]) -> None:
    order = even_turns(np.array(sizes))
    assert np.bincount(order, minlength=len(sizes)).tolist() == sizes
    came = np.cumsum(order[:, None] == np.arange(len(sizes)), axis=0)  # (n, learners)
    owed = np.arange(1, len(order) + 1)[:, None] * np.array(sizes) / len(order)  # (n, learners)
    assert np.abs(came - owed).max() < 1


def test_even_turns_by_hand() -> None:
    assert even_turns(np.array([2, 2])).tolist() == [0, 1, 0, 1]
    assert even_turns(np.array([1, 4])).tolist() == [
        1,
        1,
        1,
        0,
        1,
    ]  # one in five, the second's fourth not before place 4
    assert even_turns(np.array([0, 3])).tolist() == [1, 1, 1]


# --- the table


def test_class_table_by_hand() -> None:
    targets = np.array([0, 2, 2, 1, 2])
    table = class_counts(targets, [np.array([0, 1, 2]), np.array([3, 4]), np.array([], dtype=np.int64)], classes=4)
    assert table.tolist() == [[1, 0, 2, 0], [0, 1, 1, 0], [0, 0, 0, 0]] and table.dtype == np.int64
    assert class_counts(targets, [], classes=3).shape == (0, 3)


@pytest.mark.parametrize("targets", [[0, 3], [-1, 0]])
def test_class_table_refuses_targets_outside_the_classes(targets: list[int]) -> None:
    with pytest.raises(ConfigurationError, match=r"0\.\.2"):
        class_counts(np.array(targets), [np.array([0])], classes=3)


# --- errors


@pytest.mark.parametrize("learners", [0, -3])
def test_too_few_learners_are_refused(learners: int) -> None:
    with pytest.raises(ConfigurationError, match=f"got {learners}"):
        partition_samples(np.zeros(5, dtype=np.int64), learners, "iid", rng())


@pytest.mark.parametrize("how", ["iid", "dirichlet(1)", "shards(1)", "quantity(1)", "shares(1, 1, 1, 1, 1, 1)"])
def test_more_learners_than_samples_are_refused(how: str) -> None:
    with pytest.raises(ConfigurationError, match="6 learners cannot share 5 samples"):
        partition_samples(np.zeros(5, dtype=np.int64), 6, how, rng())


@pytest.mark.parametrize("alpha", ["0", "-1", "nan", "inf", "-inf", "", "many", "0.1)(", "1e999"])
@pytest.mark.parametrize("spelling", ["dirichlet({})", "dirichlet:{}"])
def test_invalid_alpha_is_refused(alpha: str, spelling: str) -> None:
    with pytest.raises(ConfigurationError, match="ALPHA must be a finite number above 0"):
        partition_samples(np.zeros(5, dtype=np.int64), 2, spelling.format(alpha), rng())


@pytest.mark.parametrize("k", ["0", "-2", "1.5", "nan", "inf", "", "two"])
def test_invalid_number_of_shards_is_refused(k: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"partition 'shards\({k}\)': K must be a whole number, 1 or more"):
        partition_samples(np.zeros(5, dtype=np.int64), 2, f"shards({k})", rng())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("dirichlet(1, 2)", r"dirichlet takes 1 number, got 2; write dirichlet\(ALPHA\)"),
        ("shards(1, 2, 3)", r"shards takes 1 number, got 3; write shards\(K\)"),
        ("iid(3)", "iid takes no numbers, got 1; write iid"),
    ],
)
def test_wrong_number_of_arguments_is_refused(how: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        partition_samples(np.zeros(5, dtype=np.int64), 2, how, rng())


@given(st.text(max_size=20) | st.sampled_from(sorted(FORMS)).flatmap(lambda w: st.text(max_size=9).map(w.__add__)))
def test_any_text_is_parsed_or_refused(how: str) -> None:
    targets = np.zeros(5, dtype=np.int64)
    try:
        parts = partition_samples(targets, 2, how, rng())
    except ConfigurationError:
        return
    check_every_sample_once(targets, parts, 2)


# --- owners


def test_owners_partition_by_hand() -> None:
    targets, owners = np.zeros(7, dtype=np.int64), np.array([3, 0, 3, 5, 0, 3, 5])  # 1, 2 and 4 have no samples
    parts = partition_samples(targets, 3, "owners", rng(), owners=owners)
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2, 5], [3, 6]]
    assert all(part.dtype == np.int64 for part in parts)


def test_owners_are_drawn_if_learners_are_fewer() -> None:
    targets, owners = np.zeros(30, dtype=np.int64), np.repeat(np.arange(10), 3)
    came = np.zeros(10)
    for seed in range(200):
        parts = partition_samples(targets, 4, "owners", rng(seed), owners=owners)
        whose = [owners[part].tolist() for part in parts]
        assert all(len(part) == 3 and len(set(mine)) == 1 for part, mine in zip(parts, whose, strict=True))
        assert whose == sorted(whose) and len({mine[0] for mine in whose}) == 4
        came[[mine[0] for mine in whose]] += 1
    assert came.min() > 50 and came.max() < 110  # 80 each, within four standard deviations


def test_too_few_or_missing_owners_are_refused() -> None:
    targets = np.zeros(6, dtype=np.int64)
    with pytest.raises(ConfigurationError, match="4 learners, and the samples have 3 owners"):
        partition_samples(targets, 4, "owners", rng(), owners=np.array([0, 0, 1, 1, 7, 7]))
    with pytest.raises(ConfigurationError, match="these have none"):
        partition_samples(targets, 2, "owners", rng())


@pytest.mark.parametrize(
    ("how", "nearest"),
    [
        ("idd", "iid"),
        ("owner", "owners"),
        ("dirichlet", "dirichlet(ALPHA)"),
        ("shards", "shards(K)"),
        ("shares", "shares(A, ...)"),
        ("share(0.25, 0.25, 0.25, 0.25)", "shares"),
        ("dirichelet(0.5)", "dirichlet"),
        ("zzz", None),
        ("", None),
    ],
)
def test_unknown_partition_is_refused(how: str, nearest: str | None) -> None:
    with pytest.raises(UnknownName, match="unknown partition") as caught:
        partition_samples(np.zeros(5, dtype=np.int64), 2, how, rng())
    assert caught.value.kind == "partition" and caught.value.nearest == nearest


def test_targets_must_be_a_vector_of_integers() -> None:
    for targets in (np.zeros(5), np.zeros((5, 1), dtype=np.int64)):
        with pytest.raises(ConfigurationError, match="whole numbers"):
            partition_samples(targets, 2, "iid", rng())  # type: ignore[arg-type]


def test_minimum_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="minimum must be at least 1"):
        partition_samples(np.zeros(5, dtype=np.int64), 2, "dirichlet(1)", rng(), minimum=0)
