"""Pairs of handwritten 8x8 digits side by side, labeled with the set of digits in them: multi-label, no download.

Both digits of a training pair are training samples of `digits`, and those of a test pair test samples. They are drawn
at random, the same ones every time: 1,000 training pairs and 797 test pairs. A pair of equal digits has one label.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.digits import read_digits

SEED = 8 * 16


def read_digit_pairs() -> RawDataset:
    """As many pairs as `digits` has samples, for training and for tests."""
    digits = read_digits()
    # RandomState, since its stream is frozen for good; that of a newer Generator may change with NumPy's version.
    generator = np.random.RandomState(SEED)
    train = _pairs(digits.inputs, digits.targets, digits.classes, generator)
    tests = _pairs(digits.test_inputs, digits.test_targets, digits.classes, generator)
    return digits._replace(
        inputs=train[0],
        targets=train[1],
        test_inputs=tests[0],
        test_targets=tests[1],
        labels=tuple(map(str, range(digits.classes))),
        source="pairs of the digits of scikit-learn",
        kind="multi-label",
    )


def _pairs(
    images: NDArray[np.uint8], digits: NDArray[np.int64], classes: int, generator: np.random.RandomState
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pairs of images (n, 1, 8, 16), and which digits are in each, (n, classes)."""
    left, right = generator.randint(len(images), size=(2, len(images)))
    present = np.zeros((len(images), classes), dtype=np.int64)
    for chosen in (left, right):
        present[np.arange(len(images)), digits[chosen]] = 1
    return np.concatenate([images[left], images[right]], axis=-1), present
