"""Owners of samples: who collected each one, as numbers with names, and a test set that every owner adds to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError


def number_owners(what: str, owners: NDArray[Any], samples: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The number of each sample's owner, (n,), and the owners' names in sorted order.

    >>> number_owners("owners", np.array(["north", "east", "north"]), 3)
    (array([1, 0, 1]), ('east', 'north'))
    """
    if owners.shape != (samples,) or owners.dtype.kind not in "biuUf":
        raise DataError(
            f"{what} must be {samples} names or numbers, one for each training sample, "
            f"got {owners.dtype} of the shape {owners.shape}"
        )
    if owners.dtype.kind == "f" and not (np.isfinite(owners) & (owners == np.floor(owners))).all():
        raise DataError(f"{what} must be names or whole numbers, got {owners[0]} and others; use a column of names")
    if owners.dtype.kind == "f":
        owners = owners.astype(np.int64)
    names, numbers = np.unique(owners, return_inverse=True)
    return numbers.astype(np.int64).reshape(-1), tuple(str(name) for name in names.tolist())


def spread_over_owners(
    targets: NDArray[np.int64], owners: NDArray[np.int64], order: NDArray[np.int64], share: float
) -> NDArray[np.bool_]:
    """Which samples are held out, (n,): a share of each class, spread over its owners; an owner keeps two or more."""
    held = np.zeros(len(targets), dtype=np.bool_)
    for label in np.unique(targets):
        mine = order[targets[order] == label]
        mine = mine[np.argsort(owners[mine], kind="stable")]  # one owner after the other
        turns = np.floor((np.arange(len(mine)) + 0.5) * share + 0.5)  # a new number where a sample is held out
        taken = mine[np.diff(turns, prepend=0.0) > 0]
        held[taken[: len(mine) - 1]] = True  # a class keeps at least one training sample
    for owner in np.unique(owners):
        mine = order[owners[order] == owner]
        missing = min(2, len(mine)) - int(np.sum(~held[mine]))
        if missing > 0:
            held[mine[held[mine]][:missing]] = False
    return held
