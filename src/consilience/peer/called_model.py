"""A model as its owner calls it, and the linear layer in it that computes the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from consilience.errors import ConfigurationError
from consilience.models import SplitModel, UnknownClassifier, split, split_or_whole, to_split_model
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
        return layer_name(self.module, self.classifier)

    def require_classifier(self, call: str) -> nn.Linear:
        """The classifier; refused where the module is not divided. call: what needs it."""
        if isinstance(self.classifier, UnknownClassifier):
            raise ConfigurationError(
                f"peer.{call} needs the linear layer that computes the logits, and of your model only the weights are "
                f"known: {self.classifier.reason}"
            )
        return self.classifier


def own_module(model: nn.Module) -> nn.Module:
    """What computes a caller's model: of a compiled one the module it was made from, which has the same parameters.

    Copies on several devices or in several processes are refused: the classifier of each reads a part of a batch.
    """
    compiled = getattr(model, "_modules", {}).get("_orig_mod")
    if compiled is not None:
        return own_module(compiled)
    if isinstance(model, nn.DataParallel):
        return own_module(_only_copy(model.module, f"on {len(model.device_ids)} devices", len(model.device_ids)))
    if isinstance(model, nn.parallel.DistributedDataParallel):
        size = torch.distributed.get_world_size(model.process_group)
        return own_module(_only_copy(model.module, f"in {size} processes", size))
    return model


def _only_copy(module: nn.Module, where: str, copies: int) -> nn.Module:
    if copies > 1:
        raise ConfigurationError(
            f"your model runs {where}, and each copy's classifier reads a part of the batch; a member is one process "
            f"with one device: give the module itself, consilience.join(url, model=model.module), and train that one, "
            f"or let each process join as a member of its own"
        )
    return module


def layer_name(model: nn.Module, layer: nn.Module) -> str:
    """The name of a layer in a model."""
    return next((name for name, module in model.named_modules() if module is layer), "classifier")


def split_model(model: nn.Module, layer: str | None, classes: int | None = None) -> SplitModel:
    """A caller's model as features and classifier; layer: the classifier's name, by default as `to_split_model`.

    classes: of the task, where it may stay undivided: see `split_or_whole`.
    """
    parameters = model.named_parameters() if isinstance(model, nn.Module) else ()
    if lazy := [name for name, p in parameters if nn.parameter.is_lazy(p)]:
        raise ConfigurationError(
            f"parameter {lazy[0]!r} of your model has no size yet, because its layer is lazy; call the model on a "
            f"batch before you join, or give the layer its input size"
        )
    if layer is None or (isinstance(model, SplitModel) and layer == "classifier"):
        return to_split_model(model) if classes is None else split_or_whole(model, classes)
    if isinstance(model, SplitModel):
        raise ConfigurationError(
            f"the model is split already, and its layer {layer!r} is not its classifier; leave `layer` out, or give "
            f"the network that it was made from"
        )
    return split(model, at=layer)


def called_as_trained(model: nn.Module, split: SplitModel, unpack: Unpack | None) -> CalledModel:
    """A model that was given to `join`, as its loop calls it; split: the same model divided."""
    if isinstance(model, SplitModel) or not _runs(model):
        return called_by_hand(split, unpack)
    return CalledModel(model, split.classifier, unpack)


def called_by_hand(split: SplitModel, unpack: Unpack | None) -> CalledModel:
    """A model whose loop calls its features and then its classifier.

    Of a network that `split` has divided, that is the network itself, which takes any inputs.
    """
    whole = isinstance(split.features, FeaturesBeforeLayer) and split.original is not split
    return CalledModel(split.original if whole else split, split.classifier, unpack)


def _runs(model: nn.Module) -> bool:
    """Whether it defines forward."""
    return getattr(model.forward, "__func__", None) is not nn.Module.forward
