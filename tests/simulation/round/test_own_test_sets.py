"""Learners with shifted data are tested on the common test set and on one shifted like their own data."""

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


def test_local_test_sets_range_from_unshifted_to_fully_shifted(data: Dataset) -> None:
    found = local_test_sets(data, 3, shift="rotate(90)+swap(1)", most=60)
    assert found is not None and found.inputs.shape == (3, 60, 1, 8, 8) and found.targets.shape == (3, 60)
    everybody = {image.tobytes(): int(label) for image, label in zip(data.test_inputs, data.test_targets, strict=True)}
    assert [everybody[image.tobytes()] for image in found.inputs[0]] == found.targets[0].tolist()
    assert np.array_equal(found.inputs[2], rotate_images(found.inputs[0], 90))
    assert np.allclose(found.inputs[1], rotate_images(found.inputs[0], 45))
    names = found.targets[0]
    assert found.targets[2].tolist() == (names ^ 1).tolist()  # the labels of each pair of classes are swapped
    assert 0 < (found.targets[1] != names).mean() < 1
    assert found.totals()[..., 0].tolist() == [[6] * 10] * 3  # samples of each class


def test_local_test_sets_cover_all_classes_of_sorted_test_data(data: Dataset) -> None:
    order = np.argsort(data.test_targets, kind="stable")
    sorted_ = replace(data, test_inputs=data.test_inputs[order], test_targets=data.test_targets[order])
    found = local_test_sets(sorted_, 2, shift="noise(0.1)", most=30)
    assert found is not None and found.totals()[0, :, 0].tolist() == [3] * 10


def test_unshifted_test_inputs_are_stored_once(data: Dataset) -> None:
    found = local_test_sets(data, 50, shift="swap(1)", most=30)
    assert found is not None and found.inputs.shape[0] == 1 and found.targets.shape == (50, 30)


def test_no_local_test_sets_without_a_shift(data: Dataset) -> None:
    assert local_test_sets(data, 3, shift="none") is None
    assert local_test_sets(data, 3, shift="swap(0)") is None
    assert local_test_sets(data, 1, shift="swap(1)") is None


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_learner_with_swapped_labels_is_accurate_on_its_own_test_set(data: Dataset, engine: str) -> None:
    settings: dict[str, Any] = {
        "learners": 2,
        "rounds": 10,
        "epochs": 3,
        "workers": 0,
        "eval_every": 10,
        "engine": engine,
    }
    result = simulate(data=data, method="independent", shift="swap(1)", **settings)
    common, own = result.accuracy[0], result.history.last("accuracy_own")[0]
    assert common[0] > 70 and own[0] > 70
    assert common[1] < 25 and own[1] > 70
