"""Models in two halves: features that can be shared, and a linear classifier on top of them."""

from consilience.models.registry import MODELS, build
from consilience.models.split import SplitModel, as_split

__all__ = ["MODELS", "SplitModel", "as_split", "build"]
