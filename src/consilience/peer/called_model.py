"""A model as its owner calls it, and the linear layer in it that computes the logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from consilience.errors import ConfigurationError
from consilience.models import SplitModel, split, to_split_model
from consilience.models.split import FeaturesBeforeLayer
from consilience.peer.batches import Unpack


@dataclass(frozen=True)
class CalledModel:
    """A module that is called with the inputs of a batch, and calls its classifier once.

    unpack: makes (inputs, targets) of the owner's batches, where they need it.
    """

    module: nn.Module
    classifier: nn.Linear
    unpack: Unpack | None = None

    @property
    def layer(self) -> str:
        """The classifier's name in the module."""
        return next((name for name, module in self.module.named_modules() if module is self.classifier), "classifier")


def split_model(model: nn.Module, layer: str | None) -> SplitModel:
    """A caller's model as features and classifier; layer: the classifier's name, by default as `to_split_model`."""
    if layer is None or (isinstance(model, SplitModel) and layer == "classifier"):
        return to_split_model(model)
    if isinstance(model, SplitModel):
        raise ConfigurationError(
            f"the model is split already, and its layer {layer!r} is not its classifier; leave `layer` out, or give "
            f"the network that it was made from"
        )
    return split(model, at=layer)


def called_by_hand(model: SplitModel, unpack: Unpack | None) -> CalledModel:
    """What is called where the model was given by hand: what its own loop calls, features and then the classifier.

    Of a network that `split` has divided, that is the network itself, which takes any inputs.
    """
    whole = isinstance(model.features, FeaturesBeforeLayer) and model.original is not model
    return CalledModel(model.original if whole else model, model.classifier, unpack)
