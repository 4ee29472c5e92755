"""A model in two parts: features, and the linear classifier that reads them.

Exchanges share statistics of features and apply the classifier to those of other learners, so they need both.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError


class SplitModel(nn.Module):
    """Logits = classifier(features(x)).

    features: (n, *input) -> (n, width), of one input or of several, by position or by name. classifier: linear,
    (n, width) -> (n, classes). bound: the largest magnitude a feature can have, 1.0 after a tanh, infinity where it is
    not known.

        >>> model = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh()), nn.Linear(32, 10), bound=1.0)
        >>> model.width, model.classes
        (32, 10)
    """

    features: nn.Module
    classifier: nn.Linear
    cut: str | None
    """Of a model with a cut, the layer it is after; see `cut`."""
    parts: dict[str, frozenset[str]]
    """Of a model with a cut, the names of the parameters and buffers of each part."""

    def __init__(self, features: nn.Module, classifier: nn.Linear, bound: float = math.inf) -> None:
        super().__init__()
        if not isinstance(classifier, nn.Linear) or classifier.in_features < 1:
            raise ConfigurationError(
                f"the classifier must be a torch.nn.Linear of known sizes, got {describe_value(classifier)}; "
                f"move every layer but the last linear one into the features"
            )
        if not bound > 0:  # NaN is refused here as well
            raise ConfigurationError(f"the bound of the features must be above 0, got {bound}")
        for name, parameter in features.named_parameters():
            if nn.parameter.is_lazy(parameter):
                raise ConfigurationError(
                    f"parameter {name!r} of the features has no size yet, because its layer is lazy; give the layer "
                    f"its input size, or call the model on a batch in the function that builds it"
                )
        self.features, self.classifier, self.bound = features, classifier, float(bound)
        self.width, self.classes = classifier.in_features, classifier.out_features
        self.cut, self.parts = None, {}
        self._original: tuple[nn.Module, ...] = ()  # in a tuple, so that it is not registered as a module of this one

    @property
    def original(self) -> nn.Module:
        """The network it was made from, which shares its parameters and buffers; itself where it was built directly."""
        return self._original[0] if self._original else self

    def made_from(self, network: nn.Module) -> Self:
        """This model, with the network it was made from noted."""
        self._original = () if network is self else (network,)
        return self

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The logits, (n, classes), of inputs (n, *input)."""
        logits: Tensor = self.classifier(self.features(*inputs, **named))  # (n, width) -> (n, classes)
        return logits


def tanh_split_model(features: nn.Module, width: int, classes: int) -> SplitModel:
    """Features that end in a tanh, so that their bound is 1, with a new linear classifier."""
    return SplitModel(features, nn.Linear(width, classes), bound=1.0)


def describe_value(thing: object) -> str:
    """A short description of a value, for an error message."""
    if isinstance(thing, nn.Linear):
        return f"{type(thing).__name__}({thing.in_features}, {thing.out_features})"
    if isinstance(thing, torch.Tensor):
        return f"a tensor of the shape {tuple(thing.shape)}"
    return "nothing" if thing is None else type(thing).__name__
