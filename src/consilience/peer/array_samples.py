"""What a member without torch gives: features, logits and labels of its samples, checked and as float32 and int64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.errors import ConfigurationError
from consilience.peer.array_exchanges import ArrayExchange


@dataclass(frozen=True)
class ArraySamples:
    """Samples as they are shared: values of each kind (rows, width), float32, and labels (rows,), int64."""

    values: Mapping[str, np.ndarray]
    labels: np.ndarray


def check_samples(
    exchanges: Sequence[ArrayExchange], federation: str, classes: int, given: Mapping[str, Any]
) -> ArraySamples:
    """The samples that a federation's exchanges need; given: `features`, `logits` and `labels`, None where left out."""
    widths = {e.values: e.width for e in exchanges}
    missing = [what for what in widths if given[what] is None]
    if missing:
        raise ConfigurationError(
            f"federation {federation!r} shares means of {' and '.join(widths)}, and no {missing[0]} were given; call "
            f"share_arrays({', '.join(f'{what}=...' for what in widths)}, labels=...)"
        )
    if given["labels"] is None:
        raise ConfigurationError("no labels were given: means are of the samples of each class; give labels=...")
    labels = _labels(given["labels"], classes)
    values: dict[str, np.ndarray] = {
        what: _values(what, given[what], len(labels), width, federation) for what, width in widths.items()
    }
    return ArraySamples(values, labels)


def _labels(given: Any, classes: int) -> np.ndarray:
    labels = _array("labels", given)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ConfigurationError(
            f"labels have the shape {labels.shape} and the type {labels.dtype}; give one integer for each sample, from "
            f"0 to {classes - 1}, such as labels.argmax(axis=1) of one-hot rows or labels.astype(int) of whole numbers"
        )
    if not len(labels):
        raise ConfigurationError("there are no samples: labels are empty, and there is nothing to upload")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ConfigurationError(
            f"labels are from {low} to {high}, and the federation has {classes} classes, 0 to {classes - 1}; number "
            f"your classes in the federation's order"
        )
    return labels.astype(np.int64)


def _values(what: str, given: Any, rows: int, width: int, federation: str) -> np.ndarray:
    values = _array(what, given)
    if values.ndim != 2 or not (np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer)):
        raise ConfigurationError(
            f"{what} have the shape {values.shape} and the type {values.dtype}; give one row of numbers for each "
            f"sample, (samples, {width})"
        )
    if len(values) != rows:
        raise ConfigurationError(f"there are {len(values)} rows of {what} and {rows} labels; give one label per row")
    if values.shape[1] != width:
        advice = (
            "give one logit for each class of the federation, in its order"
            if what == "logits"
            else "give yours the same width and meaning, such as with the projection that all members use"
        )
        raise ConfigurationError(
            f"your {what} have width {values.shape[1]}, and federation {federation!r} shares {what} of width {width}; "
            f"{advice}"
        )
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    wrong = ~np.isfinite(found).all(axis=1)
    if wrong.any():
        raise ConfigurationError(
            f"{what} of {int(wrong.sum())} samples are NaN, infinite or beyond float32, first in row "
            f"{int(wrong.argmax())}; leave these samples out, or fill in missing values"
        )
    return found


def _array(what: str, given: Any) -> np.ndarray:
    try:
        found = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"{what} cannot be read as a NumPy array: {error}; give an array on the CPU with rows of one length"
        ) from error
    if found.dtype == object:
        raise ConfigurationError(
            f"{what} are {type(given).__name__}, which NumPy reads as objects; give plain numbers, such as "
            f"{what}.astype({'int' if what == 'labels' else 'float'}), or {what}.toarray() of a sparse matrix"
        )
    if isinstance(given, np.ma.MaskedArray) and (masked := int(np.ma.getmaskarray(given).sum())):
        raise ConfigurationError(
            f"{masked} values of {what} are masked: they are missing; leave these samples out, or fill in values, such "
            f"as with {what}.filled(...)"
        )
    return found
