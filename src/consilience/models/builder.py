"""Calling whatever builds a model: it is given what it asks for, by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from consilience.errors import ConfigurationError

Builder = Callable[..., nn.Module]
"""Makes a model with fresh weights. It may ask for any of WORDS, and is called with those alone."""

WORDS = ("shape", "channels", "classes", "num_classes", "width")
"""What a builder may ask for: the shape of an input, its first number, how many classes (twice), the feature width."""


def arguments(builder: Builder, model: str, shape: tuple[int, ...], classes: int, width: int | None) -> dict[str, Any]:
    """What to call a builder with; `model` is what messages call it.

    A parameter with a default that is none of WORDS is left alone, and so is a width that nobody chose.

        >>> arguments(lambda num_classes, depth=3: nn.Linear(1, num_classes), "mine", (1, 8, 8), 10, None)
        {'num_classes': 10}
    """
    known = {"shape": shape, "channels": shape[0], "classes": classes, "num_classes": classes}
    given: dict[str, Any] = known if width is None else known | {"width": width}
    asked = _parameters(builder, model)
    for name, parameter in asked.items():
        if name not in given and parameter.default is parameter.empty:
            raise ConfigurationError(f"model {model!r} asks for {name!r}, {_why(name)}")
    return {name: given[name] for name in asked if name in given}


def _parameters(builder: Builder, model: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(builder).parameters
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"model {model!r}: cannot tell what {type(builder).__name__} asks for; name a function or class"
        ) from error
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if p.kind not in open_ended}


def _why(name: str) -> str:
    if name == "width":
        return "and no width was chosen; choose one, or give the parameter a default"
    return f"which nobody can give it; it may ask for {', '.join(WORDS)}: give any other parameter a default"
