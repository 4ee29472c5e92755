"""The 1,797 handwritten 8x8 digits that come with scikit-learn: real data without a download.

The split is fixed: 1,000 training samples, exactly 100 of each class, and the other 797 for tests. Both are ordered so
that every run of ten samples holds each class once (as long as classes last), so any first k of them are balanced too.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from consilience.data.raw_dataset import RawDataset, balanced_order

TRAIN = 1_000
SEED = 1797


def read_digits() -> RawDataset:
    """All digits, split and ordered as this module says."""
    table = _read_table()  # (1797, 65): 64 pixels and the class
    images = table[:, :64].astype(np.uint8).reshape(-1, 1, 8, 8)  # (1797, 1, 8, 8), 0..16
    targets = table[:, 64].astype(np.int64)  # (1797,)
    order = balanced_order(targets, SEED)
    train, test = order[:TRAIN], order[TRAIN:]
    halves = (images[train], targets[train], images[test], targets[test])
    return RawDataset(*halves, classes=10, pixel_max=16, source="the digits of scikit-learn")


def _read_table() -> np.ndarray:
    """The file that scikit-learn reads: importing the library for it would take a second."""
    file = _bundled_file()
    if file is not None:
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _bundled_file() -> Path | None:
    """Where scikit-learn keeps the digits; None in a version that keeps them elsewhere."""
    package = find_spec("sklearn")
    places = [] if package is None else [Path(place) for place in package.submodule_search_locations or ()]
    return next((file for place in places if (file := place / "datasets/data/digits.csv.gz").is_file()), None)
