"""Any network as features and a linear classifier: what the layer that computes the logits reads are the features.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10), nn.Softmax(dim=1))
    >>> split(net).width, split(net, at="1").width
    (16, 64)

The second is allowed but rarely useful: its features are the inputs themselves, so learners would share raw data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from typing import Any

from torch import Tensor, nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.input_fields import InputFields
from consilience.models.split_model import SplitModel, describe_value
from consilience.models.whole_model import WholeModel

_ADAPTED = "base_layer"
"""Where a layer with an adapter, of peft, keeps the layer that it was made of."""


class LayerInputRecorder(nn.Module):
    """Replaces a linear layer: records its input, and returns zeros of the layer's output shape.

    Later layers get the shape they expect; their outputs are not used.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes, self.recorded = classes, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., classes)."""
        self.recorded.append(x)
        return x.new_zeros((*x.shape[:-1], self.classes))


class FeaturesBeforeLayer(nn.Module):
    """Inputs (n, *input) -> the input of the model's layer `at`, (n, width).

    fields: what rows are packed of, where the model takes several inputs.
    """

    def __init__(self, model: nn.Module, at: str, width: int) -> None:
        super().__init__()
        self.model, self.at, self.width = model, at, width
        self.fields: InputFields | None = None

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Run the whole model, and return what the layer reads."""
        recorder = self.model.get_submodule(self.at)  # looked up, so that a copy of this module uses its own
        assert isinstance(recorder, LayerInputRecorder)
        recorder.recorded = []
        try:
            given, by_name = (inputs, named) if self.fields is None else self.fields.arguments(inputs, named)
            self.model(*given, **by_name)
            first = next(each for each in (*inputs, *named.values()) if isinstance(each, Tensor))
            return self._single(recorder.recorded, first.shape[0])  # len(first) would fix the number when traced
        finally:
            recorder.recorded = []  # so that the model can be copied and memory freed

    def _single(self, recorded: list[Tensor], samples: int) -> Tensor:
        name = f"layer {self.at!r} of {type(self.model).__name__}"
        if not recorded:
            raise ConfigurationError(
                f"{name} was never called in the forward pass; name the linear layer that computes the "
                f"logits, split(model, at=...), and call it as a module"
            )
        if len(recorded) > 1:
            raise ConfigurationError(
                f"{name} was called {len(recorded)} times in one forward pass, and must be called "
                f"once; call it once for a batch, or name another layer, split(model, at=...)"
            )
        if recorded[0].shape != (samples, self.width):
            raise ConfigurationError(
                f"{name} read inputs of the shape {tuple(recorded[0].shape)} for {samples} samples, and must "
                f"read ({samples}, {self.width}); flatten, pool or select its input first, such as x.flatten(1), or "
                f"build the layer for inputs of that width"
            )
        return recorded[0]


def split(model: nn.Module, at: str | None = None, *, bound: float = math.inf) -> SplitModel:
    """Any network as features + linear classifier: `at` is the name of the linear layer that computes the logits.

    model: it is not changed, and the result shares its parameters and buffers, so an optimizer made for one updates the
    other. Train only one of the two at a time.
    at: a dotted name as in `model.named_modules()`, such as "fc" or "head.2"; the last torch.nn.Linear by default.
    bound: the largest magnitude of the layer's inputs, where it is known: 1.0 after a tanh.

    What the model computes after that layer is left out. That is right for a softmax, since cross-entropy takes logits;
    but a scale or temperature learned there is lost.

        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        >>> model = split(net, at="3", bound=1.0)
        >>> model.width, model.classes, model.classifier is net[3]
        (16, 10, True)
    """
    _refuse_unusable(model)
    name = _linears(model)[-1] if at is None else at
    layer = _layer(model, name)
    _refuse_adapted(model, name)
    recording = _replace_layer(model, name, LayerInputRecorder(layer.out_features))
    of_layer = {id(p) for p in layer.parameters()}
    shared = [key for key, p in recording.named_parameters() if id(p) in of_layer]
    if shared:
        raise ConfigurationError(
            f"layer {name!r} of {type(model).__name__} shares its parameters with {shared[0]!r}; a classifier needs "
            f"weights of its own: untie the two, or name another layer"
        )
    return SplitModel(FeaturesBeforeLayer(recording, name, layer.in_features), layer, bound).made_from(model)


def to_split_model(module: nn.Module) -> SplitModel:
    """The module as a SplitModel that shares its parameters.

    Of a module with `features` and a linear `classifier` these two are used; what its own `forward` does between them
    is not, so `features` must return (n, width). Any other module is split at its last linear layer. Its attribute
    `bound` is used where it has one.
    """
    if isinstance(module, SplitModel):
        return module
    features, classifier = getattr(module, "features", None), getattr(module, "classifier", None)
    if isinstance(features, nn.Module) and isinstance(classifier, nn.Linear):
        return SplitModel(features, classifier, _bound(module)).made_from(module)
    if isinstance(module, nn.Module) and _runs(module) and _linears(module):
        return split(module, bound=_bound(module))
    if not isinstance(module, nn.Module) or (_runs(module) and features is classifier is None):
        _refuse_unusable(module)
    raise ConfigurationError(
        f"{type(module).__name__} is not a split model: it needs modules named features and classifier, the latter a "
        f"torch.nn.Linear, but has features = {describe_value(features)} and "
        f"classifier = {describe_value(classifier)}; "
        f"name them so, build SplitModel(features, classifier) from its parts, or give it a forward that ends in a "
        f"torch.nn.Linear"
    )


def given_names(model: SplitModel, names: Iterable[str]) -> dict[str, str]:
    """Names in the model that was given, or in its `features` where it has them, by those in the split model."""
    inside, logits = "features.", "classifier."
    if isinstance(model.features, FeaturesBeforeLayer):
        inside, logits = "features.model.", f"{model.features.at}."
    return {n: n.removeprefix(inside) if n.startswith(inside) else n.replace("classifier.", logits, 1) for n in names}


def network_names(model: SplitModel) -> dict[str, str]:
    """Of a network that was split, or is taken as a whole: names of its weights in it, by those here; else nothing."""
    if not isinstance(model.features, FeaturesBeforeLayer) and not isinstance(model, WholeModel):
        return {}
    return given_names(model, [name for name, _ in (*model.named_parameters(), *model.named_buffers())])


def split_or_whole(module: nn.Module, classes: int) -> SplitModel:
    """As `to_split_model`; a network that cannot be divided is taken as a whole, for methods that share weights only.

    classes: how many outputs the task has.
    """
    try:
        return to_split_model(module)
    except ConfigurationError as error:
        if not isinstance(module, nn.Module) or not _runs(module):
            raise
        return WholeModel(module, classes, str(error))


def _refuse_unusable(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else describe_value(model)
        raise ConfigurationError(f"a model is a torch.nn.Module, got {got}; build one first, such as Net()")
    if not _runs(model):
        raise ConfigurationError(f"{type(model).__name__} has no forward; split needs a model that runs")
    if isinstance(model, nn.Linear):
        raise ConfigurationError(
            "the model is a torch.nn.Linear, and its classifier must be a layer inside of it; give "
            "nn.Sequential(nn.Flatten(), layer)"
        )
    if not _linears(model):
        raise ConfigurationError(
            f"{type(model).__name__} has no torch.nn.Linear to compute the logits; let it end in one, such as "
            f"nn.Sequential(model, nn.Flatten(), nn.Linear(width, classes))"
        )


def _runs(model: nn.Module) -> bool:
    """Whether it defines forward."""
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
        inside = [name for name in _linears(model) if name.startswith(f"{at}.")]
        _refuse_adapted(model, (inside or [at])[-1])
        raise ConfigurationError(
            f"layer {at!r} of {type(model).__name__} is a {type(layer).__name__}, and the logits must come from a "
            f"torch.nn.Linear: {', '.join(inside or _linears(model))}"
        )
    return layer


def _refuse_adapted(model: nn.Module, at: str) -> None:
    """Refuse a layer that is one term of a sum: one of an adapter's matrices, or the layer that it was added to."""
    names = at.split(".")
    for end in range(len(names), 0, -1):
        adapted = model.get_submodule(".".join(names[:end]))
        if isinstance(getattr(adapted, _ADAPTED, None), nn.Module):
            whole = ".".join(names[:end])
            raise ConfigurationError(
                f"layer {at!r} of {type(model).__name__} is one part of {whole!r}, to which an adapter was added, and "
                f"the logits are the sum of several; train the classifier itself, such as with "
                f"LoraConfig(modules_to_save=[{names[end - 1]!r}]) of peft, and leave it out of target_modules; or "
                f"name another layer"
            )


def _replace_layer(model: nn.Module, at: str, layer: nn.Module) -> nn.Module:
    """The model with another layer at `at`: only the modules that contain it are copied, all else is shared."""
    child, _, rest = at.partition(".")
    inner = model._modules[child]
    assert inner is not None  # the layer was found there
    copied = type(model).__new__(type(model))
    vars(copied).update(vars(model))
    copied._modules = copy(model._modules)
    copied._modules[child] = _replace_layer(inner, rest, layer) if rest else layer
    return copied


def _bound(module: nn.Module) -> float:
    """A module's attribute `bound`, the largest magnitude of its features, where that is a number."""
    try:
        return float(getattr(module, "bound", math.inf))
    except (TypeError, ValueError, RuntimeError):  # a method, a string, a vector
        return math.inf
