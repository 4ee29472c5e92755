"""Learners whose data were shifted are tested on the common samples, and on samples like their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.data import Dataset, load
from consilience.data.deal import own_tests
from consilience.data.shifts import rotated


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=400, test=200)


def test_the_first_learner_s_are_everybody_s_and_the_last_s_are_shifted_in_full(data: Dataset) -> None:
    found = own_tests(data, 3, shift="rotate(90)+swap(1)", most=60)
    assert found is not None and found.inputs.shape == (3, 60, 1, 8, 8) and found.targets.shape == (3, 60)
    assert np.array_equal(found.inputs[0], data.test_inputs[:60])
    assert np.array_equal(found.targets[0], data.test_targets[:60])
    assert np.array_equal(found.inputs[2], rotated(data.test_inputs[:60], 90))
    assert np.allclose(found.inputs[1], rotated(data.test_inputs[:60], 45))
    names = data.test_targets[:60]
    assert found.targets[2].tolist() == (names ^ 1).tolist()  # classes in pairs, each called by the other's name
    assert 0 < (found.targets[1] != names).mean() < 1
    assert found.counts().sum(1).tolist() == [60] * 3
    assert found.counts()[2].tolist() == np.bincount(names ^ 1, minlength=10).tolist()


def test_nothing_of_one_s_own_where_nothing_is_shifted(data: Dataset) -> None:
    assert own_tests(data, 3, shift="none") is None
    assert own_tests(data, 3, shift="swap(0)") is None
    assert own_tests(data, 1, shift="swap(1)") is None


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
