"""What there is to say about a data set, for a record of what a run learned from."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset

_STRIDE = 101  # every so many values of the inputs: enough to notice other data, and quick for any


def about(data: Dataset) -> dict[str, Any]:
    """A record that JSON can write: sizes, class counts, scaling, and a digest that other data would change."""
    return {
        "name": data.name,
        "source": data.source,
        "samples": len(data.targets),
        "test_samples": len(data.test_targets),
        "shape": list(data.shape),
        "classes": data.classes,
        "labels": list(data.labels),
        "class_counts": np.bincount(data.targets, minlength=data.classes).tolist(),
        "test_class_counts": np.bincount(data.test_targets, minlength=data.classes).tolist(),
        "mean": data.mean,
        "std": data.std,
        "never_shared": 0 if data.share is None else int(np.sum(~data.share)),
        "sha256": _digest(data),
    }


def _digest(data: Dataset) -> str:
    """SHA-256 of the labels, the marks and every so many values of the inputs."""
    share = np.ones(len(data.targets), dtype=np.bool_) if data.share is None else data.share
    arrays: tuple[NDArray[Any], ...] = (data.targets, data.test_targets, share)
    digest = hashlib.sha256(f"{data.inputs.shape} {data.test_inputs.shape}".encode())
    for values in (*arrays, data.inputs.reshape(-1)[::_STRIDE], data.test_inputs.reshape(-1)[::_STRIDE]):
        digest.update(values.tobytes())
    return digest.hexdigest()
