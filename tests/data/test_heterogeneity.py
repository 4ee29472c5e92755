"""Heterogeneity cases: learners differ in exactly the distributions that the case names."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from consilience.data.dataset import Dataset
from consilience.data.heterogeneity import (
    CASES,
    Distances,
    HeterogeneityCase,
    heterogeneity_case,
    measure_heterogeneity,
)
from consilience.data.local_datasets import LocalDatasets, make_local_datasets

NAMES = ("inputs", "labels_given_inputs", "labels", "inputs_given_labels")
X, YX, Y, XY = NAMES

TABLE_2 = {
    "7a": {X, YX, Y, XY},
    "7b": {X, YX, XY},
    "7c": {YX, Y, XY},
    "7d": {YX, XY},
    "7e": {X, Y},
    "7f": {YX, Y},
    "7g": {X, XY},
    "7h": {X, YX, Y},
    "7i": {X, Y, XY},
}


def numbers(classes: int, samples: int) -> Dataset:
    targets = np.arange(samples, dtype=np.int64) % classes
    inputs = np.zeros((samples, 1, 2, 2), dtype=np.float32)
    return Dataset("numbers", inputs, targets, inputs[:1], targets[:1], classes)


def differing(case: HeterogeneityCase) -> set[str]:
    return {name for name in NAMES if getattr(case, name)}


def assert_distances_match(local: LocalDatasets, found: Distances, times: float, slack: float = 0.0) -> None:
    """Distances of distributions that the case names exceed chance; the others do not."""
    for name in NAMES:
        distance, chance = getattr(found, name), getattr(found.noise, name)
        if getattr(local.case, name):
            assert distance > 0.05 and distance > times * chance, name
        else:
            assert distance <= 1.25 * chance + slack, name


# --- cases


@pytest.mark.parametrize("figure", TABLE_2)
def test_each_case_differs_as_in_table_2(figure: str) -> None:
    case = heterogeneity_case(*CASES[figure])
    assert case.figure == figure and differing(case) == TABLE_2[figure]


def test_there_are_nine_cases() -> None:
    assert list(CASES) == list(TABLE_2)


@pytest.mark.parametrize("partition", ["iid", "quantity(0.1)", "shares(1, 9)"])
@pytest.mark.parametrize("shift", ["none", "ambiguous", "rotate(0)+contrast(1)+noise(0)+swap(0)+relabel(0)"])
def test_different_sizes_are_no_case(partition: str, shift: str) -> None:
    case = heterogeneity_case(partition, shift)
    assert case == HeterogeneityCase(False, False, False, False) and case.figure == ""


@pytest.mark.parametrize(
    ("partition", "shift", "figure"),
    [
        ("shards(2)", "none", "7e"),
        ("shares(1, 1)", "contrast(2)", "7g"),
        ("iid", "noise(1)", "7g"),
        ("iid", "label-noise(0.1)", "7d"),
        ("iid", "noise(1)+relabel(0.2)", "7a"),
        ("dirichlet(1)", "prefer(0.9)", "7a"),
        ("iid", "swap(0.5)+relabel(0.2)", "7c"),
        ("iid", "relabel(0.2)+ambiguous", "7f"),
        ("shards(1)", "ambiguous+prefer(1)", "7h"),
    ],
)
def test_other_combinations_map_to_one_of_the_nine_cases(partition: str, shift: str, figure: str) -> None:
    assert heterogeneity_case(partition, shift).figure == figure


def test_every_combination_is_one_of_the_nine_cases_or_none() -> None:
    shifts = ("noise(1)", "label-noise(1)", "swap(1)", "relabel(1)", "prefer(1)", "ambiguous")
    for some in (each for size in range(7) for each in combinations(shifts, size)):
        for partition in ("iid", "dirichlet(1)"):
            for classes in (None, 1, 2, 3):
                case = heterogeneity_case(partition, "+".join(some) or "none", classes)
                assert bool(case.figure) == bool(differing(case))


def test_case_is_described() -> None:
    assert heterogeneity_case(*CASES["7a"]).describe() == "learners differ in p(x), p(y|x), p(y) and p(x|y)"
    assert heterogeneity_case(*CASES["7b"]).describe() == "learners differ in p(x), p(y|x) and p(x|y) but not in p(y)"
    assert heterogeneity_case("iid", "none").describe() == "learners' data come from one distribution"


# --- local data


@dataclass(frozen=True)
class LearnerShift:
    """The samples of two learners, small enough to count by hand."""

    original_targets: np.ndarray
    targets: np.ndarray
    parts: list[np.ndarray]
    strength: np.ndarray


def test_heterogeneity_distances_by_hand() -> None:
    # Learner 0 has classes 0 0 0 1, called 0 0 1 1; learner 1 has 1 1 1 1, called 1 1 1 0.
    hands = LearnerShift(
        original_targets=np.array([0, 0, 0, 1, 1, 1, 1, 1]),
        targets=np.array([0, 0, 1, 1, 1, 1, 1, 0]),
        parts=[np.arange(4), np.arange(4, 8)],
        strength=np.zeros(2),
    )
    found = measure_heterogeneity(hands)
    assert found.inputs == pytest.approx(3 / 8)  # 3/4 and 0 of class 0, 3/8 in all
    assert found.labels == pytest.approx(1 / 8)  # 1/2 and 1/4 of label 0, 3/8 in all
    # Given class 0, only learner 0 counts. Given class 1, label 0 has 0 of 1 and 1 of 4, 1/5 in all.
    assert found.labels_given_inputs == pytest.approx((1 / 4 * 1 / 5 + 1 / 20) / 2)
    # Given label 0, class 0 has 2 of 2 and 0 of 1, 2/3 in all; given label 1, 1 of 2 and 0 of 3, 1/5 in all.
    assert found.inputs_given_labels == pytest.approx(
        ((2 / 4 * 1 / 3 + 2 / 4 * 3 / 10) + (1 / 4 * 2 / 3 + 3 / 4 * 1 / 5)) / 2
    )


def test_shift_strength_distinguishes_inputs() -> None:
    labels = np.array([0, 1, 0, 1])
    hands = LearnerShift(labels, labels, [np.array([0, 1]), np.array([2, 3])], np.array([0.0, 1.0]))
    found = measure_heterogeneity(hands)
    assert found[:4] == pytest.approx((0.5, 0, 0, 0.5))


def test_chance_level_uses_the_same_sizes_and_seed() -> None:
    local = make_local_datasets(numbers(4, 400), 4, partition="shares(97, 1, 1, 1)", seed=1)
    sizes = [len(part) for part in local.parts]
    assert sizes == [388, 4, 4, 4]
    found = measure_heterogeneity(local, draws=50)
    # Four random samples miss 4 * (3/4)**4 = 1.27 of four classes, each a quarter of the whole; 388 miss almost none.
    assert found.noise.labels == pytest.approx(3 / 4 * 1.27 / 4, abs=0.02) and found.labels == 0
    assert (
        measure_heterogeneity(local) == measure_heterogeneity(local)
        and measure_heterogeneity(local).noise != measure_heterogeneity(local, seed=1).noise
    )


@pytest.mark.parametrize("figure", CASES)
@pytest.mark.parametrize("learners", [4, 6])
def test_local_data_of_each_case_differ_as_described(figure: str, learners: int) -> None:
    partition, shift = CASES[figure]
    for seed in (0, 1):
        local = make_local_datasets(numbers(10, 4000), learners, partition=partition, shift=shift, seed=seed)
        assert local.case.figure == figure
        assert_distances_match(local, measure_heterogeneity(local), times=2.5)


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("partition", ["iid", "dirichlet(1)"])
def test_local_data_of_every_combination_differ_as_described(partition: str, classes: int) -> None:
    data = numbers(classes, 6000)
    shifts = ("noise(1)", "label-noise(0.8)", "swap(0.8)", "relabel(0.8)", "prefer(0.9)", "ambiguous")
    for some in (each for size in range(7) for each in combinations(shifts, size)):
        local = make_local_datasets(data, 4, partition=partition, shift="+".join(some) or "none", seed=1)
        assert_distances_match(local, measure_heterogeneity(local, draws=3), times=2, slack=0.01)
