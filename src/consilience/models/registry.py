"""Models by name."""

from __future__ import annotations

from collections.abc import Callable

from consilience.errors import ConfigurationError, UnknownName
from consilience.models.lenet5 import lenet5
from consilience.models.mlp import mlp
from consilience.models.resnet9 import resnet9
from consilience.models.split import SplitModel

Builder = Callable[[tuple[int, int, int], int], SplitModel]
"""Makes a model with fresh weights for an input shape and a number of classes."""

MODELS: dict[str, Builder] = {"lenet5": lenet5, "mlp": mlp, "resnet9": resnet9}
"""Every model that `build` knows, by name."""


def build(name: str, shape: tuple[int, int, int], classes: int) -> SplitModel:
    """The model `name` for inputs (channels, height, width), its weights drawn from torch's global generator.

    Seed that generator first: the same seed gives the same weights.
    """
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    if len(shape) != 3 or min(shape) < 1:
        raise ConfigurationError(
            f"model {name!r} takes inputs of the shape (channels, height, width), each at least 1, got {tuple(shape)}"
        )
    if classes < 1:
        raise ConfigurationError(f"model {name!r} needs at least 1 class, got {classes}")
    return MODELS[name](shape, classes)
