"""Learners whose data were shifted are tested on the common samples, and on samples like their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.data import Dataset, load
from consilience.data.local_test_sets import local_test_sets
from consilience.data.shifts import rotate_images


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=400, test=200)


def test_the_first_learner_s_are_everybody_s_and_the_last_s_are_shifted_in_full(data: Dataset) -> None:
    found = local_test_sets(data, 3, shift="rotate(90)+swap(1)", most=60)
    assert found is not None and found.inputs.shape == (3, 60, 1, 8, 8) and found.targets.shape == (3, 60)
    everybody = {image.tobytes(): int(label) for image, label in zip(data.test_inputs, data.test_targets, strict=True)}
    assert [everybody[image.tobytes()] for image in found.inputs[0]] == found.targets[0].tolist()
    assert np.array_equal(found.inputs[2], rotate_images(found.inputs[0], 90))
    assert np.allclose(found.inputs[1], rotate_images(found.inputs[0], 45))
    names = found.targets[0]
    assert found.targets[2].tolist() == (names ^ 1).tolist()  # classes in pairs, each called by the other's name
    assert 0 < (found.targets[1] != names).mean() < 1
    assert found.counts().tolist() == [[6] * 10] * 3


def test_every_class_is_tested_even_where_tests_lie_in_the_order_of_classes(data: Dataset) -> None:
    order = np.argsort(data.test_targets, kind="stable")
    sorted_ = replace(data, test_inputs=data.test_inputs[order], test_targets=data.test_targets[order])
    found = local_test_sets(sorted_, 2, shift="noise(0.1)", most=30)
    assert found is not None and found.counts()[0].tolist() == [3] * 10


def test_inputs_that_nobody_changes_are_kept_once(data: Dataset) -> None:
    found = local_test_sets(data, 50, shift="swap(1)", most=30)
    assert found is not None and found.inputs.shape[0] == 1 and found.targets.shape == (50, 30)


def test_nothing_of_one_s_own_where_nothing_is_shifted(data: Dataset) -> None:
    assert local_test_sets(data, 3, shift="none") is None
    assert local_test_sets(data, 3, shift="swap(0)") is None
    assert local_test_sets(data, 1, shift="swap(1)") is None


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_who_calls_things_otherwise_is_right_on_its_own_terms(data: Dataset, engine: str) -> None:
    settings: dict[str, Any] = {
        "learners": 2,
        "rounds": 10,
        "epochs": 3,
        "workers": 0,
        "eval_every": 10,
        "engine": engine,
    }
    result = simulate(data=data, method="independent", shift="swap(1)", **settings)
    common, own = result.accuracy[0], result.history.last("accuracy_local")[0]
    assert common[0] > 70 and own[0] > 70
    assert common[1] < 25 and own[1] > 70
