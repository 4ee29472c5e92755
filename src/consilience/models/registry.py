"""Models by name: those built in, those registered, and those in a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.input_fields import InputShape
from consilience.models.builder import ModelBuilder, builder_arguments, single_shape
from consilience.models.from_file import is_model_file, load_builder
from consilience.models.nets.cnn import cnn, cnn5, cnn5_small, device_cnn, device_cnn_large, device_cnn_medium
from consilience.models.nets.encoders import encoder18, encoder50
from consilience.models.nets.lenet5 import lenet5
from consilience.models.nets.lstm import device_lstm, lstm
from consilience.models.nets.mlp import mlp
from consilience.models.nets.resnet9 import resnet9
from consilience.models.nets.resnet18 import resnet18
from consilience.models.split import to_split_model
from consilience.models.split_model import SplitModel, describe_value

Registered = TypeVar("Registered", bound=ModelBuilder)

MODELS: dict[str, ModelBuilder] = {
    "lenet5": lenet5,
    "mlp": mlp,
    "resnet9": resnet9,
    "resnet18": resnet18,
    "encoder18": encoder18,
    "encoder50": encoder50,
    "cnn": cnn,
    "cnn5": cnn5,
    "cnn5-small": cnn5_small,
    "device-cnn": device_cnn,
    "device-cnn-medium": device_cnn_medium,
    "device-cnn-large": device_cnn_large,
    "lstm": lstm,
    "device-lstm": device_lstm,
}
"""Every model that `build_model` knows by a plain name."""
_BUILT_IN = tuple(MODELS.values())


def register_model(name: str) -> Callable[[Registered], Registered]:
    """Register a model builder, a function or a module class, under a name.

    It is called with those of shape, channels, classes, num_classes and width that are among its parameters.

        >>> @register("linear")
        ... def linear(channels, num_classes):
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(channels, num_classes))
        >>> build_model("linear", (64,), 10).width
        64
        >>> del MODELS["linear"]
    """
    if not name or is_model_file(name) or "," in name:
        raise ConfigurationError(f"{name!r} cannot be the name of a model; use a word without ':', ',' or '.py'")
    if name in MODELS:
        raise ConfigurationError(f"there is a model {name!r} already; use a name other than {', '.join(MODELS)}")

    def add(builder: Registered) -> Registered:
        MODELS[name] = builder
        return builder

    return add


def model_names() -> list[str]:
    """The plain names `build_model` knows, in order."""
    return sorted(MODELS)


def build_model(name: str, shape: InputShape, classes: int, width: int | None = None) -> SplitModel:
    """The model `name` for inputs of a shape, its weights drawn from torch's global generator.

    name: a plain name, or one in a file: "net.py:Net", "net.py:Net@fc". shape: of several fields a dictionary or a
    tuple of their shapes, which a model of your own may take. width: of the features; None: the model's
    default. Seed that generator first: the same seed gives the same weights.

        >>> build_model("mlp", (13,), classes=3, width=8).width
        8
    """
    return _build(_builder(name), name, shape, classes, width)


def model_factory(name: str, shape: InputShape, classes: int, width: int | None = None) -> Callable[[], SplitModel]:
    """A function that builds the model later, in another process too, where this one's models are not registered."""
    if is_model_file(name):  # each process reads the file itself
        return partial(build_model, name, shape, classes, width)
    return partial(_build, _builder(name), name, shape, classes, width)


def model_size(name: str, shape: tuple[int, ...], classes: int, width: int | None = None) -> dict[str, int]:
    """The number of a model's parameters, and the width of its features.

    >>> describe("lenet5", (1, 28, 28), 10)
    {'parameters': 30986, 'width': 84}
    """
    with torch.random.fork_rng(devices=[]):  # the caller's generator stays as it is
        model = build_model(name, shape, classes, width)
    return {"parameters": sum(p.numel() for p in model.parameters()), "width": model.width}


def _builder(name: str) -> ModelBuilder:
    if is_model_file(name):
        return load_builder(name)
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    return MODELS[name]


def _build(builder: ModelBuilder, name: str, shape: InputShape, classes: int, width: int | None) -> SplitModel:
    _check_task(name, shape, classes, width)
    if single_shape(shape) is None and builder in _BUILT_IN:
        raise ConfigurationError(
            f"model {name!r} takes one array, and the data has several fields, of the shapes {shape}; name a model of "
            f"your own whose forward takes them, such as net.py:Net@fc"
        )
    module = builder(**builder_arguments(builder, name, shape, classes, width))
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"model {name!r}: its builder returned {describe_value(module)}; it must return a torch.nn.Module"
        )
    model = to_split_model(module)
    if width is not None and model.width != width:
        raise ConfigurationError(
            f"model {name!r} has features of width {model.width}, and width is {width}; let its builder use a "
            f"parameter named width, or set width to {model.width}"
        )
    return model


def _check_task(name: str, shape: InputShape, classes: int, width: int | None) -> None:
    single = single_shape(shape)
    if single is not None and min(single, default=0) < 1:
        raise ConfigurationError(
            f"model {name!r} takes inputs of a shape such as (channels, height, width) or (features,), "
            f"each number at least 1, got {tuple(shape)}"
        )
    if classes < 1:
        raise ConfigurationError(f"model {name!r} needs at least 1 class, got {classes}")
    if width is not None and width < 1:
        raise ConfigurationError(f"model {name!r} needs features of a width of at least 1, got {width}")
