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
from consilience.input_fields import InputShape
from consilience.models.builder import ModelBuilder, builder_arguments
from consilience.models.split import split
from consilience.models.split_model import describe_value
from consilience.user_code import defined_names, failure, file_digest, load_module, naming_failures, sibling_imports

__all__ = ["ModelInFile", "absolute_model_name", "failure", "is_model_file", "load_builder", "model_digest"]

HOW = "write path/to/file.py:NAME, or path/to/file.py:NAME@LAYER to name the linear layer that computes the logits"


class ModelInFile(NamedTuple):
    """A model in a user's file: the file, the name of what builds it, and the layer to split at."""

    file: Path
    name: str
    layer: str | None


def is_model_file(name: str) -> bool:
    """Whether a model's name means a file: it has a colon, as no plain name does, or ends like a file.

    >>> is_path("nets/mine.py:Net@fc"), is_path("mlp")
    (True, False)
    """
    return ":" in name or name.endswith(".py")


def absolute_model_name(name: str) -> str:
    """The name with its file's absolute path; a plain name unchanged."""
    if not is_model_file(name):
        return name
    file, colon, rest = name.rpartition(":") if ":" in name else (name, "", "")
    return f"{Path(file).expanduser().absolute()}{colon}{rest}"


def model_digest(name: str) -> str:
    """SHA-256 of the file's contents, to notice that a model's code has changed between runs."""
    return file_digest(_parse_name(name).file, HOW)


def load_builder(name: str) -> Callable[..., nn.Module]:
    """A function of (shape, classes, width=None) that makes the model a name such as "net.py:Net@fc" stands for.

    The named function or class is called with those of its parameters that are among shape, channels, classes,
    num_classes, and width.
    """
    model = _parse_name(name)
    builder = _load_named(model)

    def build(shape: InputShape, classes: int, width: int | None = None) -> nn.Module:
        given = builder_arguments(builder, name, shape, classes, width)
        with naming_failures(model.file, f"{model.name} failed"), sibling_imports(model.file):
            module = builder(**given)
        if not isinstance(module, nn.Module):
            raise ConfigurationError(
                f"{model.file}: {model.name} returned {describe_value(module)}, and must return a torch.nn.Module"
            )
        try:
            return module if model.layer is None else split(module, model.layer)
        except ConfigurationError as error:
            raise ConfigurationError(f"{model.file}: {error}") from None

    return build


def _parse_name(name: str) -> ModelInFile:
    file, _, rest = name.rpartition(":") if ":" in name else (name, "", "")
    builder, at, layer = rest.partition("@")
    if not is_model_file(name) or not builder or (at and not layer):
        raise ConfigurationError(f"{name!r} does not name a model in a file; {HOW}")
    return ModelInFile(Path(file).expanduser().absolute(), builder, layer if at else None)


def _load_named(model: ModelInFile) -> ModelBuilder:
    """What a file defines by that name, if it is something that builds models."""
    module = load_module(model.file, HOW)
    if model.name not in vars(module):
        raise UnknownName("model", model.name, defined_names(module), str(model.file))
    builder: ModelBuilder | object = vars(module)[model.name]
    if isinstance(builder, nn.Module) or not callable(builder):
        raise ConfigurationError(
            f"{model.file}: {model.name} is {describe_value(builder)}; name a function or class that makes a new "
            f"torch.nn.Module each time it is called, since every learner needs its own weights"
        )
    return builder
