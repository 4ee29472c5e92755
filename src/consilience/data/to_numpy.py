"""Anything like an array as a NumPy array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError


def to_numpy(what: str, thing: Any) -> NDArray[Any]:
    """Any array, tensor or image as a NumPy array, without importing its library."""
    for step in ("detach", "cpu"):  # a tensor needs both before NumPy can read it
        thing = getattr(thing, step)() if hasattr(thing, step) else thing
    try:
        return np.asarray(thing)
    except (TypeError, ValueError) as error:  # lists of unequal length; bfloat16
        raise DataError(f"{what} cannot be read as an array ({error}); give all one shape and type") from error
