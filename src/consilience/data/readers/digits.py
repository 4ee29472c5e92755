"""The 1,797 handwritten 8x8 digits that come with scikit-learn: real data without a download.

The split is fixed: 1,000 training samples, exactly 100 of each class, and the other 797 for tests. Both are ordered so
that every run of ten samples holds each class once (as long as classes last), so any first k of them are balanced too.
"""

from __future__ import annotations

import numpy as np

from consilience.data.raw_dataset import RawDataset, balanced_order

TRAIN = 1_000
SEED = 1797


def read_digits() -> RawDataset:
    """All digits, split and ordered as this module says."""
    # Imported here because scikit-learn takes a second to import and most runs do without it.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.asarray(bunch.images, dtype=np.uint8)[:, np.newaxis]  # (1797, 1, 8, 8), 0..16
    targets = np.asarray(bunch.target, dtype=np.int64)  # (1797,)
    order = balanced_order(targets, SEED)
    train, test = order[:TRAIN], order[TRAIN:]
    halves = (images[train], targets[train], images[test], targets[test])
    return RawDataset(*halves, classes=10, pixel_max=16, source="the digits of scikit-learn")
