"""The arguments of a function or class that builds a model, chosen by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from consilience.errors import ConfigurationError
from consilience.input_fields import InputShape

ModelBuilder = Callable[..., nn.Module]
"""Makes a model with new weights. It is called with those of BUILDER_PARAMETERS that it has."""

BUILDER_PARAMETERS = ("shape", "channels", "classes", "num_classes", "width")
"""What a builder may take: an input's shape and channels, the number of classes (two spellings), the feature width."""


def builder_arguments(
    builder: ModelBuilder, model: str, shape: InputShape, classes: int, width: int | None
) -> dict[str, Any]:
    """The arguments to call a builder with; `model` names it in error messages.

    Any other parameter keeps its default, and so does the width where none is chosen.

        >>> arguments(lambda num_classes, depth=3: nn.Linear(1, num_classes), "mine", (1, 8, 8), 10, None)
        {'num_classes': 10}
    """
    given: dict[str, Any] = {"shape": shape, "classes": classes, "num_classes": classes}
    given |= {} if width is None else {"width": width}
    taken = _parameters(builder, model)
    single = single_shape(shape)
    if single is not None:
        given["channels"] = single[0]
    elif "channels" in taken and taken["channels"].default is inspect.Parameter.empty:
        raise ConfigurationError(
            f"model {model!r} has the parameter 'channels', and the data has several fields, of the shapes {shape}; "
            f"take them from 'shape', or name a model for these fields, such as net.py:Net@fc"
        )
    for name, parameter in taken.items():
        if name not in given and parameter.default is parameter.empty:
            raise ConfigurationError(f"model {model!r} has the parameter {name!r}, {_why(name)}")
    return {name: given[name] for name in taken if name in given}


def single_shape(shape: InputShape) -> tuple[int, ...] | None:
    """The shape of one array; None where it is the shapes of several fields."""
    sizes = tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, tuple) else ()
    return sizes if len(sizes) == len(shape) else None


def _parameters(builder: ModelBuilder, model: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(builder).parameters
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"model {model!r}: the parameters of {type(builder).__name__} are not known; name a function or class"
        ) from error
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if p.kind not in open_ended}


def _why(name: str) -> str:
    if name == "width":
        return "and no width is set; set one, or give the parameter a default"
    return f"which is unknown; it may have {', '.join(BUILDER_PARAMETERS)}: give any other parameter a default"
