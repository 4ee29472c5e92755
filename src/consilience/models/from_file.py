"""Models from a user's file: "path/to/net.py:Net", or "path/to/net.py:Net@fc" with the layer to split at.

The file may import modules of its folder while it is run and while it builds; a change of those is not noticed, and
the digest does not cover them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.models.builder import ModelBuilder, builder_arguments
from consilience.models.split import split
from consilience.models.split_model import describe_value
from consilience.user_code import defined_names, failure, file_digest, load_module, naming_failures, sibling_imports

__all__ = ["Place", "absolute", "digest", "failure", "is_path", "load_builder"]

HOW = "write path/to/file.py:NAME, or path/to/file.py:NAME@LAYER to name the linear layer that makes the logits"


class Place(NamedTuple):
    """A model in a user's file: the file, the name of what builds it, and the layer to split at."""

    file: Path
    thing: str
    layer: str | None


def is_path(name: str) -> bool:
    """Whether a model's name means a file: it has a colon, as no plain name does, or ends like a file.

    >>> is_path("nets/mine.py:Net@fc"), is_path("mlp")
    (True, False)
    """
    return ":" in name or name.endswith(".py")


def absolute(name: str) -> str:
    """The name with its file's absolute path; a plain name unchanged."""
    if not is_path(name):
        return name
    file, colon, rest = name.rpartition(":") if ":" in name else (name, "", "")
    return f"{Path(file).expanduser().absolute()}{colon}{rest}"


def digest(name: str) -> str:
    """SHA-256 of the file's contents, to notice that a model's code has changed between runs."""
    return file_digest(_place(name).file, HOW)


def load_builder(name: str) -> Callable[..., nn.Module]:
    """A function of (shape, classes, width=None) that makes the model a name such as "net.py:Net@fc" stands for.

    The named function or class is called with what it asks for by name: any of shape, channels, classes or
    num_classes, and width.
    """
    place = _place(name)
    thing = _thing(place)

    def build(shape: tuple[int, ...], classes: int, width: int | None = None) -> nn.Module:
        given = builder_arguments(thing, name, shape, classes, width)
        with naming_failures(place.file, f"{place.thing} failed"), sibling_imports(place.file):
            module = thing(**given)
        if not isinstance(module, nn.Module):
            raise ConfigurationError(
                f"{place.file}: {place.thing} gave {describe_value(module)}, and must give a torch.nn.Module"
            )
        try:
            return module if place.layer is None else split(module, place.layer)
        except ConfigurationError as error:
            raise ConfigurationError(f"{place.file}: {error}") from None

    return build


def _place(name: str) -> Place:
    file, _, rest = name.rpartition(":") if ":" in name else (name, "", "")
    thing, at, layer = rest.partition("@")
    if not is_path(name) or not thing or (at and not layer):
        raise ConfigurationError(f"{name!r} does not name a model in a file; {HOW}")
    return Place(Path(file).expanduser().absolute(), thing, layer if at else None)


def _thing(place: Place) -> ModelBuilder:
    """What a file defines by that name, if it is something that builds models."""
    module = load_module(place.file, HOW)
    if place.thing not in vars(module):
        raise UnknownName("model", place.thing, defined_names(module), str(place.file))
    thing = vars(module)[place.thing]
    if isinstance(thing, nn.Module) or not callable(thing):
        raise ConfigurationError(
            f"{place.file}: {place.thing} is {describe_value(thing)}; name a function or class that makes a new "
            f"torch.nn.Module each time it is called, for every learner needs weights of its own"
        )
    builder: ModelBuilder = thing
    return builder
