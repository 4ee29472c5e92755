"""The setting `classes`: only the samples of the first classes of a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.simulation.setup.inputs import load_data, select_samples


def test_first_classes_of_a_known_data_set() -> None:
    whole, some = load("digits"), load("digits", classes=3)
    kept, tested = whole.targets < 3, whole.test_targets < 3
    assert some.classes == 3 and some.labels == whole.labels[:3]
    assert np.array_equal(some.targets, whole.targets[kept]) and np.array_equal(
        some.test_targets, whole.test_targets[tested]
    )
    pixels = [data.scaling.of_pixels for data in (whole, some)]
    raw = whole.inputs[kept] * pixels[0][1] + pixels[0][0]
    np.testing.assert_allclose(some.inputs * pixels[1][1] + pixels[1][0], raw, atol=1e-5)
    assert abs(some.inputs.mean()) < 1e-5, "scaled by the samples that are used"


def test_samples_are_counted_among_these_classes() -> None:
    some = load("digits", classes=2, train=50, test=20)
    assert len(some.targets) == 50 and len(some.test_targets) == 20 and set(some.targets) == {0, 1}
    with pytest.raises(ConfigurationError, match="training samples"):
        load("digits", classes=2, train=1000)


def test_own_data_and_the_configuration_of_a_run() -> None:
    owners = np.arange(12) % 3
    mine = Dataset.from_arrays(
        "mine", np.arange(24.0).reshape(12, 2), np.arange(12) % 4, [[0.0, 1.0]] * 4, range(4), owners=owners
    )
    found = select_samples(mine, make_config({"classes": 3, "train": 4}))
    assert found.classes == 3 and set(found.targets) <= {0, 1, 2} and len(found.targets) == 4
    assert found.test_targets.tolist() == [0, 1, 2] and found.owners is not None and len(found.owners) == 4
    assert load_data(make_config({"classes": 4})).classes == 4


@pytest.mark.parametrize("count", [1, 11, 2.5])
def test_impossible_number_of_classes_is_refused(count: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"classes is [\d.]+, and data set 'digits' has 10 classes; use 2 to 10"
    ):
        load("digits", classes=count)


def test_characters_of_a_text_are_not_left_out() -> None:
    text = Dataset.from_text("songs", {"ann": "la " * 40, "bob": "do re " * 20}, length=8)
    with pytest.raises(ConfigurationError, match="whose classes are its characters"):
        select_samples(text, make_config({"classes": 3}))


def test_models_predict_these_classes_alone() -> None:
    found = simulate(data="digits", method="representation-sharing", classes=3, train=60, test=30, rounds=2, learners=2)
    assert (
        found.summary()["message_bytes"]["up"]
        < simulate(data="digits", method="representation-sharing", train=60, test=30, rounds=1, learners=2).summary()[
            "message_bytes"
        ]["up"]
    )
