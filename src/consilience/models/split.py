"""Somebody's own network as features and a linear classifier: a tap in the place of the layer that makes the logits.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10), nn.Softmax(dim=1))
    >>> split(net).width, split(net, at="1").width
    (16, 64)

The second is allowed and hardly wanted: its features are the inputs themselves, and what learners share of features is
then made of raw data.
"""

from __future__ import annotations

import math
from copy import copy

from torch import Tensor, nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.models.split_model import SplitModel, describe_value


class Tap(nn.Module):
    """Stands in for a linear layer: keeps what the layer would have read, and hands on zeros of the layer's shape.

    Zeros, so that whatever follows finds the shape it expects; nothing that follows is used.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes, self.seen = classes, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., classes)."""
        self.seen.append(x)
        return x.new_zeros((*x.shape[:-1], self.classes))


class TappedFeatures(nn.Module):
    """Inputs (n, *input) -> what the layer `at` of the model reads, (n, width)."""

    def __init__(self, model: nn.Module, at: str, width: int) -> None:
        super().__init__()
        self.model, self.at, self.width = model, at, width

    def forward(self, x: Tensor) -> Tensor:
        """Run the whole model, and give what its tap saw."""
        tap = self.model.get_submodule(self.at)  # looked up, so that a copy of this module uses its own
        assert isinstance(tap, Tap)
        tap.seen = []
        try:
            self.model(x)
            return self._only(tap.seen, len(x))
        finally:
            tap.seen = []  # a tensor that is kept here could be neither copied nor freed

    def _only(self, seen: list[Tensor], samples: int) -> Tensor:
        name = f"layer {self.at!r} of {type(self.model).__name__}"
        if not seen:
            raise ConfigurationError(
                f"{name} was never reached: the forward pass does not call it; name the linear layer that makes the "
                f"logits, split(model, at=...), and call it as a module"
            )
        if len(seen) > 1:
            raise ConfigurationError(
                f"{name} was called {len(seen)} times in one forward pass, and a classifier reads the features once; "
                f"call it once for a batch, or name another layer, split(model, at=...)"
            )
        if seen[0].shape != (samples, self.width):
            raise ConfigurationError(
                f"{name} was given inputs of the shape {tuple(seen[0].shape)} for {samples} samples, and must be given "
                f"({samples}, {self.width}); flatten, pool or select what it reads first, such as x.flatten(1)"
            )
        return seen[0]


def split(model: nn.Module, at: str | None = None, *, bound: float = math.inf) -> SplitModel:
    """Any network as features + linear classifier: `at` is the name of the linear layer that makes the logits.

    model: as you have it. It is not changed, and nothing of it is copied but the modules on the way to that layer, as
    shells: both keep the same parameters and buffers, so an optimizer made for the one moves the other. Train through
    one of the two at a time.
    at: a dotted name as in `model.named_modules()`, such as "fc" or "head.2"; the last torch.nn.Linear by default.
    bound: the largest magnitude of what the layer reads, where it is known: 1.0 after a tanh.

    What the model does after that layer is left out. That is as it should be for a softmax, since cross-entropy takes
    logits; but a scale or temperature learned there is lost.

        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        >>> model = split(net, at="3", bound=1.0)
        >>> model.width, model.classes, model.classifier is net[3]
        (16, 10, True)
    """
    _refuse_unusable(model)
    name = _linears(model)[-1] if at is None else at
    layer = _layer(model, name)
    tapped = _tapped(model, name, Tap(layer.out_features))
    own = {id(p) for p in layer.parameters()}
    shared = [key for key, p in tapped.named_parameters() if id(p) in own]
    if shared:
        raise ConfigurationError(
            f"layer {name!r} of {type(model).__name__} shares its parameters with {shared[0]!r}; a classifier needs "
            f"weights of its own: untie the two, or name another layer"
        )
    return SplitModel(TappedFeatures(tapped, name, layer.in_features), layer, bound)


def to_split_model(module: nn.Module) -> SplitModel:
    """The module as a SplitModel sharing its parameters.

    A module with `features` and a linear `classifier` is taken at its word: whatever its own `forward` does between the
    two is not seen here, and `features` must give (n, width) by itself. Any other is split at its last linear layer.
    Its own `bound`, where it has one, is believed.
    """
    if isinstance(module, SplitModel):
        return module
    features, classifier = getattr(module, "features", None), getattr(module, "classifier", None)
    if isinstance(features, nn.Module) and isinstance(classifier, nn.Linear):
        return SplitModel(features, classifier, _bound(module))
    if isinstance(module, nn.Module) and _runs(module) and _linears(module):
        return split(module, bound=_bound(module))
    raise ConfigurationError(
        f"{type(module).__name__} is no split model: it needs modules named features and classifier, the latter a "
        f"torch.nn.Linear, but has features = {describe_value(features)} and "
        f"classifier = {describe_value(classifier)}; "
        f"name them so, build SplitModel(features, classifier) from its parts, or give it a forward that ends in a "
        f"torch.nn.Linear"
    )


def _refuse_unusable(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"split takes a torch.nn.Module, got {describe_value(model)}; call what builds one first"
        )
    if not _runs(model):
        raise ConfigurationError(f"{type(model).__name__} has no forward; split needs a model that runs")
    if not _linears(model):
        raise ConfigurationError(
            f"{type(model).__name__} has no torch.nn.Linear inside it to make the logits; let it end in one, such as "
            f"nn.Sequential(model, nn.Flatten(), nn.Linear(width, classes))"
        )


def _runs(model: nn.Module) -> bool:
    """Whether it has a forward of its own."""
    return getattr(model.forward, "__func__", None) is not nn.Module.forward


def _linears(model: nn.Module) -> list[str]:
    """Names of the linear layers inside a model, in the order they were registered."""
    return [name for name, module in model.named_modules() if name and isinstance(module, nn.Linear)]


def _layer(model: nn.Module, at: str) -> nn.Linear:
    layers = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    if at not in layers:
        raise UnknownName("linear layer", at, _linears(model), type(model).__name__)
    layer = layers[at]
    if not isinstance(layer, nn.Linear):
        raise ConfigurationError(
            f"layer {at!r} of {type(model).__name__} is a {type(layer).__name__}, and the logits must be made by a "
            f"torch.nn.Linear: {', '.join(_linears(model))}"
        )
    return layer


def _tapped(model: nn.Module, at: str, tap: Tap) -> nn.Module:
    """The model with a tap in the place of a layer: shells of the modules on the way to it, all else shared."""
    child, _, rest = at.partition(".")
    inner = model._modules[child]
    assert inner is not None  # the layer was found there
    shell = type(model).__new__(type(model))
    vars(shell).update(vars(model))
    shell._modules = copy(model._modules)
    shell._modules[child] = _tapped(inner, rest, tap) if rest else tap
    return shell


def _bound(module: nn.Module) -> float:
    """What a module says of its features' magnitude; something else may go by that name."""
    try:
        return float(getattr(module, "bound", math.inf))
    except (TypeError, ValueError, RuntimeError):  # a method, a word, a vector
        return math.inf
