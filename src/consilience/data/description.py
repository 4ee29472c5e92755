"""What there is to say about a data set, for a record of what a run learned from."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset


def describe_dataset(data: Dataset) -> dict[str, Any]:
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
        "owners": list(data.owner_names),
        "alphabet": data.alphabet,
        "sha256": digest(data),
    }


def digest(data: Dataset) -> str:
    """SHA-256 of all that a run learns from and is tested on: labels, marks and inputs; owners and alphabet, if any."""
    share = np.ones(len(data.targets), dtype=np.bool_) if data.share is None else data.share
    arrays: tuple[NDArray[Any], ...] = (data.targets, data.test_targets, share, data.inputs, data.test_inputs)
    found = hashlib.sha256(f"{data.inputs.shape} {data.test_inputs.shape}".encode())
    for values in arrays:
        found.update(np.ascontiguousarray(values).data)
    if data.owners is not None:
        found.update(np.ascontiguousarray(data.owners).data)
    if data.alphabet:
        found.update(data.alphabet.encode("utf-8", "surrogatepass"))
    return found.hexdigest()
