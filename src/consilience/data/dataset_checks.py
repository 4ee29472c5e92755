"""What the arrays and names of a data set must be; anything else is refused with a DataError."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError


def check_shapes(what: str, inputs: NDArray[Any], test_inputs: NDArray[Any]) -> None:
    """Refuse training and test inputs of different shapes."""
    if inputs.shape[1:] != test_inputs.shape[1:]:
        raise DataError(
            f"{what}: training inputs have the shape {inputs.shape[1:]}, "
            f"test inputs {test_inputs.shape[1:]}; one model cannot take both"
        )


def check_names(what: str, labels: tuple[str, ...], classes: int) -> None:
    """Refuse class names that are not one different name per class."""
    if labels and (not all(isinstance(n, str) for n in labels) or not len(set(labels)) == len(labels) == classes):
        raise DataError(
            f"{what}: labels must be {classes} different words, one for each class, or none at all, got {labels}"
        )


def check_owners(what: str, owners: NDArray[np.int64] | None, names: tuple[str, ...], samples: int) -> None:
    """Refuse owners that are not one named owner per training sample."""
    if owners is None:
        if names:
            raise DataError(
                f"{what}: {len(names)} owner_names are given without owners; give the owner of each sample as well"
            )
        return
    if owners.shape != (samples,) or owners.dtype != np.int64:
        raise DataError(
            f"{what}: owners must be int64 of the shape ({samples},), one for each training sample, "
            f"got {owners.dtype} of the shape {owners.shape}"
        )
    if len(set(names)) != len(names) or not 0 <= owners.min() <= owners.max() < len(names):
        raise DataError(
            f"{what}: owners must lie in 0..{len(names) - 1} for {len(names)} different names, "
            f"got {owners.min()}..{owners.max()}; name each owner once"
        )


def check_codes(what: str, inputs: NDArray[np.float32], alphabet: str) -> None:
    """Refuse inputs that are not positions in the alphabet."""
    if inputs.ndim != 2 or inputs.min() < 0 or inputs.max() >= len(alphabet) or (inputs != np.floor(inputs)).any():
        raise DataError(
            f"{what} inputs have characters outside the alphabet: codes must be whole numbers in "
            f"0..{len(alphabet) - 1} of the shape (n, length), got {inputs.min():g}..{inputs.max():g} of the shape "
            f"{inputs.shape}"
        )


def check_inputs(what: str, inputs: NDArray[np.float32]) -> None:
    """Refuse inputs that cannot be trained or tested on."""
    if inputs.ndim < 2 or inputs.size == 0 or inputs.dtype != np.float32:
        raise DataError(
            f"{what} inputs must be float32 of the shape (n, channels, height, width) or (n, features) and not empty, "
            f"got {inputs.dtype} of the shape {inputs.shape}; reshape and convert them first"
        )
    if not np.isfinite(inputs).all():
        raise DataError(f"{what} inputs must be finite, got {np.sum(~np.isfinite(inputs))} values that are not")


def check_shareable(what: str, allowed: NDArray[np.bool_] | None, samples: int) -> None:
    """Refuse marks that are not one truth value for each training sample."""
    if allowed is not None and (allowed.shape != (samples,) or allowed.dtype != np.bool_):
        raise DataError(
            f"{what}: shareable must be bool of the shape ({samples},), one for each training sample, "
            f"got {allowed.dtype} of the shape {allowed.shape}"
        )


def check_sample_epsilons(what: str, own: NDArray[np.float64] | None, samples: int) -> None:
    """Refuse privacy budgets that are not one number, 0 or more, for each training sample."""
    if own is not None and (own.shape != (samples,) or own.dtype != np.float64 or not (own >= 0).all()):
        raise DataError(
            f"{what}: sample_epsilons must be float64 of the shape ({samples},), 0 or more for each "
            f"training sample, got {own.dtype} of the shape {own.shape}; write inf where a sample has none"
        )
