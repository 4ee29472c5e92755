"""A network that is not divided into features and a classifier: where only weights travel, nobody reads features."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.models.split_model import SplitModel


class UnknownClassifier(nn.Linear):
    """Stands where a divided model has its classifier: it has no parameters, and calling it says why."""

    def __init__(self, classes: int, reason: str) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.reason = 1, classes, reason
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, features: Tensor) -> Tensor:
        """Refused."""
        raise ConfigurationError(self.reason)


class WholeModel(SplitModel):
    """Any network, for methods that share weights only. reason: why it cannot be divided.

    Its parameters are those of the network, named `features.NAME`; the width of its features is not known.
    """

    def __init__(self, network: nn.Module, classes: int, reason: str) -> None:
        super().__init__(network, UnknownClassifier(classes, reason))
        self.made_from(network)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the network returns."""
        return self.features(*inputs, **named)
