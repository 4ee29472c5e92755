"""The 442 patients of the diabetes data that come with scikit-learn: a small regression without a download.

Ten measurements of each patient, and how far the disease has progressed a year later, from 25 to 346. The split is
fixed: a shuffle, of which the first 342 patients are for training and the last 100 for tests.
"""

from __future__ import annotations

import numpy as np

from consilience.data.raw_dataset import RawDataset

TRAIN = 342
SEED = 442


def read_diabetes() -> RawDataset:
    """All patients, split as this module says."""
    # Imported here because scikit-learn takes a second to import and most runs do without it.
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    # RandomState, since its stream is frozen for good; that of a newer Generator may change with NumPy's version.
    order = np.random.RandomState(SEED).permutation(len(bunch.target))
    inputs, targets = np.asarray(bunch.data, dtype=np.float64)[order], np.asarray(bunch.target, np.float64)[order]
    halves = (inputs[:TRAIN], targets[:TRAIN], inputs[TRAIN:], targets[TRAIN:])
    return RawDataset(
        *halves,
        classes=1,
        labels=("progression",),
        source="the diabetes data of scikit-learn",
        columns=tuple(bunch.feature_names),
        kind="regression",
    )
