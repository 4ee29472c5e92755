"""A JSON record that describes a data set, and its fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset
from consilience.task import SINGLE_LABEL


def describe_dataset(data: Dataset) -> dict[str, Any]:
    """A record that JSON can write: sizes, class counts, scaling, and a SHA-256 of its content."""
    return {
        "name": data.name,
        "source": data.source,
        "samples": len(data.targets),
        "test_samples": len(data.test_targets),
        "shape": list(data.shape),
        "classes": data.classes,
        "labels": list(data.labels),
        "class_counts": data.group_counts(data.targets).tolist(),
        "test_class_counts": data.group_counts(data.test_targets).tolist(),
        **({} if data.target == SINGLE_LABEL else {"target": asdict(data.target), "groups": data.group_names}),
        "scaling": data.scaling.record(),
        "columns": list(data.columns),
        "never_shared": 0 if data.shareable is None else int(np.sum(~data.shareable)),
        "owners": list(data.owner_names),
        "alphabet": data.alphabet,
        "fields": None if data.fields is None else data.fields.record(),
        "sha256": dataset_sha256(data),
    }


def dataset_sha256(data: Dataset) -> str:
    """SHA-256 of labels, shareable flags and inputs; of owners, epsilons, fields and alphabet, if any."""
    shareable = np.ones(len(data.targets), dtype=np.bool_) if data.shareable is None else data.shareable
    arrays: tuple[NDArray[Any], ...] = (data.targets, data.test_targets, shareable, data.inputs, data.test_inputs)
    found = hashlib.sha256(f"{data.inputs.shape} {data.test_inputs.shape}".encode())
    for values in arrays:
        found.update(np.ascontiguousarray(values).data)
    if data.target != SINGLE_LABEL:
        found.update(repr(data.target).encode())
    if data.owners is not None:
        found.update(np.ascontiguousarray(data.owners).data)
    if data.sample_epsilons is not None:
        found.update(np.ascontiguousarray(data.sample_epsilons).data)
    if data.stream is not None:
        found.update(f"streamed, of the shape {data.shape}".encode())  # samples are not read for it
    if data.fields is not None:
        found.update(repr(data.fields.record()).encode())
    if data.alphabet:
        found.update(data.alphabet.encode("utf-8", "surrogatepass"))
    return found.hexdigest()
