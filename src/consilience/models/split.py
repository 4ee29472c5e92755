"""A model cut in two: features, and the linear classifier that reads them.

Exchanges share what the features look like and ask the classifier about somebody else's, so they need both halves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError


class SplitModel(nn.Module):
    """Logits = classifier(features(x)).

    features: (n, *input) -> (n, width). classifier: linear, (n, width) -> (n, classes). bound: the largest magnitude a
    feature can have, 1.0 after a tanh, infinity where it is not known.
    """

    features: nn.Module
    classifier: nn.Linear

    def __init__(self, features: nn.Module, classifier: nn.Linear, bound: float = math.inf) -> None:
        super().__init__()
        if not isinstance(classifier, nn.Linear) or classifier.in_features < 1:
            raise ConfigurationError(
                f"the classifier must be a torch.nn.Linear of known sizes, got {_describe(classifier)}; "
                f"move every layer but the last linear one into the features"
            )
        if not bound > 0:  # NaN is refused here as well
            raise ConfigurationError(f"the bound of the features must be above 0, got {bound}")
        self.features, self.classifier, self.bound = features, classifier, float(bound)
        self.width, self.classes = classifier.in_features, classifier.out_features

    def forward(self, x: Tensor) -> Tensor:
        """The logits, (n, classes), of inputs (n, *input)."""
        logits: Tensor = self.classifier(self.features(x))  # (n, width) -> (n, classes)
        return logits


def as_split(module: nn.Module) -> SplitModel:
    """The module as a SplitModel sharing its parameters: it must have `features` and a linear `classifier`.

    Whatever its own `forward` does between the two is not seen here: `features` must give (n, width) by itself.
    """
    if isinstance(module, SplitModel):
        return module
    features, classifier = getattr(module, "features", None), getattr(module, "classifier", None)
    if not isinstance(features, nn.Module) or not isinstance(classifier, nn.Linear):
        raise ConfigurationError(
            f"{type(module).__name__} is no split model: it needs modules named features and classifier, the latter a "
            f"torch.nn.Linear, but has features = {_describe(features)} and classifier = {_describe(classifier)}; "
            f"name them so, or build SplitModel(features, classifier) from its parts"
        )
    return SplitModel(features, classifier, float(getattr(module, "bound", math.inf)))


def refuse_small(model: str, shape: tuple[int, int, int], smallest: int) -> None:
    """Refuse inputs whose height or width a model's pools would bring to nothing."""
    if min(shape[1:]) < smallest:
        raise ConfigurationError(
            f"model {model!r} needs inputs of at least {smallest}x{smallest} pixels, "
            f"got {shape[1]}x{shape[2]}; take a larger data set or a smaller model"
        )


def head(features: nn.Module, width: int, classes: int) -> SplitModel:
    """The features, which must end in a tanh, under a new linear classifier."""
    return SplitModel(features, nn.Linear(width, classes), bound=1.0)


def _describe(thing: object) -> str:
    """A name for what was received, short enough for an error message."""
    if isinstance(thing, nn.Linear):
        return f"{type(thing).__name__}({thing.in_features}, {thing.out_features})"
    if isinstance(thing, torch.Tensor):
        return f"a tensor of the shape {tuple(thing.shape)}"
    return "nothing" if thing is None else type(thing).__name__
