"""Jobs in parts: a job of some of its entries, and the results of the parts as the result of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.simulation.engines.jobs import Job, JobResult

Uploads = dict[str, tuple[dict[str, Tensor], Tensor]]
"""What the entries of a job upload, by exchange: tensors (entries, ...) and weights."""
_BY_ENTRY = ("rows", "online", "training")  # arrays of jobs, (entries, ...)
_BY_EXCHANGE = ("held", "fresh")  # such arrays by exchange


def take_entries(job: Job, entries: np.ndarray) -> Job:
    """The job of some of its entries."""
    changes: dict[str, Any] = {}
    for each in fields(job):
        value = getattr(job, each.name)
        if each.name in _BY_ENTRY:
            changes[each.name] = value[entries]
        elif each.name in _BY_EXCHANGE:
            changes[each.name] = {name: numbers[entries] for name, numbers in value.items()}
        elif each.name == "held_out" and value is not None:
            changes[each.name] = tuple(value[i] for i in entries)
    return replace(job, **changes)


def merge_results(parts: Sequence[tuple[np.ndarray, JobResult]]) -> JobResult:
    """The result of a job from those of its parts, each with the entries that it is of."""
    size = sum(len(entries) for entries, _ in parts)
    results = [result for _, result in parts]
    logits = [result.logits for result in results if result.logits is not None]
    return JobResult(
        losses=_arrays(parts, "losses", size),
        correct=_arrays(parts, "correct", size),
        non_finite={int(at[i]): what for at, result in parts for i, what in result.non_finite.items()},
        seconds={phase: _by_key(parts, "seconds", phase, size) for phase in results[0].seconds},
        logits=sum(logits[1:], start=logits[0]) if logits else None,
        measured={key: _by_key(parts, "measured", key, size) for key in results[0].measured},
        dependence=_arrays(parts, "dependence", size),
        features=_tuples(parts, "features", size),
        validated=_tuples(parts, "validated", size),
    )


def merge_uploads(parts: Sequence[tuple[np.ndarray, Uploads]], size: int) -> Uploads:
    """What a job uploads from what its parts do; zeros for entries that upload nothing."""
    merged: Uploads = {}
    for entries, uploads in parts:
        add_uploads(merged, uploads, entries, size)
    return merged


def add_uploads(merged: Uploads, uploads: Uploads, entries: np.ndarray, size: int) -> None:
    """Add the uploads of some entries of a job to those of its other entries."""
    for name, (tensors, weight) in uploads.items():
        if name not in merged:
            whole = {k: t.new_zeros((size, *t.shape[1:])) for k, t in tensors.items()}
            merged[name] = whole, weight.new_zeros((size, *weight.shape[1:]))
        index = torch.from_numpy(entries).to(weight.device)
        for key, tensor in tensors.items():
            merged[name][0][key].index_copy_(0, index, tensor)
        merged[name][1].index_copy_(0, index, weight)


def _arrays(parts: Sequence[tuple[np.ndarray, JobResult]], name: str, size: int) -> np.ndarray | None:
    """An array of the results, (entries, ...); None where they have none."""
    found = [(entries, getattr(result, name)) for entries, result in parts]
    return None if found[0][1] is None else _scattered(found, size)


def _by_key(parts: Sequence[tuple[np.ndarray, JobResult]], name: str, key: str, size: int) -> np.ndarray:
    return _scattered([(entries, getattr(result, name)[key]) for entries, result in parts], size)


def _scattered(found: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> np.ndarray:
    whole = np.zeros((size, *found[0][1].shape[1:]), dtype=found[0][1].dtype)
    for entries, values in found:
        whole[entries] = values
    return whole


def _tuples(parts: Sequence[tuple[np.ndarray, JobResult]], name: str, size: int) -> tuple[np.ndarray, ...]:
    """What the results have for each entry, in the order of the job; empty where they have nothing."""
    found = {
        int(entry): value
        for entries, result in parts
        for entry, value in zip(entries, getattr(result, name), strict=False)
    }
    return tuple(found[entry] for entry in range(size)) if len(found) == size else ()
