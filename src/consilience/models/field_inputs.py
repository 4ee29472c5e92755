"""Models that take several inputs, by name or by position: their rows are unpacked right before the forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.input_fields import InputFields
from consilience.models.split import FeaturesBeforeLayer, to_split_model
from consilience.models.split_model import SplitModel

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FeaturesOfFields(nn.Module):
    """Rows with all fields of a sample -> features (n, width), by a module that takes the fields."""

    def __init__(self, model: nn.Module, fields: InputFields) -> None:
        super().__init__()
        self.model, self.fields = model, fields

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Features of rows; or of the fields themselves, as the module takes them."""
        given, by_name = self.fields.arguments(inputs, named)
        features: Tensor = self.model(*given, **by_name)
        return features


@dataclass(frozen=True)
class BuildWithFields:
    """Builds a model that takes rows in which the fields of a sample are packed."""

    build: Callable[[], nn.Module]
    fields: InputFields

    def __call__(self) -> SplitModel:
        """A new model."""
        return with_fields(to_split_model(self.build()), self.fields)


def build_for(build: Callable[[], nn.Module], fields: InputFields | None) -> Callable[[], nn.Module]:
    """What builds a model for inputs with these fields; None: for single arrays, as it is."""
    return build if fields is None else BuildWithFields(build, fields)


def with_fields(model: SplitModel, fields: InputFields) -> SplitModel:
    """The model, which from now on takes packed rows as well; refused where its forward does not take the fields.

    Its parameters keep their names, and `original` is the network as it was.
    """
    features = model.features
    if isinstance(features, FeaturesBeforeLayer):
        check_forward(features.model, fields)
        features.fields = fields
        return model
    check_forward(features, fields)
    packed = SplitModel(FeaturesOfFields(features, fields), model.classifier, model.bound).made_from(model.original)
    if model.cut is not None:
        packed.cut = _inside(model.cut)
        packed.parts = {part: frozenset(map(_inside, names)) for part, names in model.parts.items()}
    return packed


def _inside(name: str) -> str:
    """The name of a module or tensor of the features, once they are inside of `FeaturesOfFields`."""
    first, dot, rest = name.partition(".")
    return f"features.model{dot}{rest}" if first == "features" else name


def check_forward(module: nn.Module, fields: InputFields) -> None:
    """Refuse a module whose forward does not take these fields, or needs others."""
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return  # of a forward in C; the first pass shows whether it takes them
    kinds = [each.kind for each in parameters.values()]
    takes = [name for name, each in parameters.items() if each.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)]
    needed = [name for name in takes if parameters[name].default is inspect.Parameter.empty]
    what = f"the forward of {type(module).__name__} takes {', '.join(takes) or 'nothing'}"
    if fields.named:
        unknown = [n for n in fields.names if n not in takes and inspect.Parameter.VAR_KEYWORD not in kinds]
        missing = [name for name in needed if name not in fields.names]
    else:
        places = [name for name in takes if parameters[name].kind in _POSITIONAL]
        unknown = list(fields.names[len(places) :]) if inspect.Parameter.VAR_POSITIONAL not in kinds else []
        missing = [name for name in needed if name not in places[: len(fields.names)]]
    if unknown:
        raise ConfigurationError(
            f"{what}, and the data has the fields {fields.describe()}: it does not take {unknown[0]!r}; name fields as "
            f"the arguments are named, or leave the field out"
        )
    if missing:
        raise ConfigurationError(
            f"{what}, and the data has the fields {fields.describe()}: {missing[0]!r} is missing; add it to the data, "
            f"or give the argument a default"
        )
