"""Models from a file of one's own: "path/to/net.py:Net", or "path/to/net.py:Net@fc" with the layer to split at.

The file is run as it stands, with all that Python may do: name only files you trust. It may import what lies beside it,
while it is read and while it builds; that is imported once, and neither its changes nor the digest speak of it.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.models.builder import ModelBuilder, builder_arguments
from consilience.models.file_imports import beside
from consilience.models.split import split
from consilience.models.split_model import describe_value

HOW = "write path/to/file.py:NAME, or path/to/file.py:NAME@LAYER to name the linear layer that makes the logits"

_read: dict[tuple[Path, str], ModuleType] = {}
"""Files run in this process, by where they lie and what they said."""


class Place(NamedTuple):
    """Where a model of one's own is found."""

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
    """The name with its file's path in full, so that it means the same from anywhere; a plain name as it is."""
    if not is_path(name):
        return name
    file, colon, rest = name.rpartition(":") if ":" in name else (name, "", "")
    return f"{Path(file).expanduser().absolute()}{colon}{rest}"


def digest(name: str) -> str:
    """SHA-256 of what the file says, to notice that a model's code has changed between runs."""
    return _digest(_content(_place(name).file))


def load_builder(name: str) -> Callable[..., nn.Module]:
    """A function of (shape, classes, width=None) that makes the model a name such as "net.py:Net@fc" stands for.

    The named function or class is called with what it asks for by name: any of shape, channels, classes or
    num_classes, and width. A file is run once in a process, and again when it has changed.
    """
    place = _place(name)
    thing = _thing(place)

    def build(shape: tuple[int, ...], classes: int, width: int | None = None) -> nn.Module:
        given = builder_arguments(thing, name, shape, classes, width)
        with _in_words(place.file, f"{place.thing} failed"), beside(place.file):
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


def _content(file: Path) -> bytes:
    if file.suffix != ".py":
        raise ConfigurationError(f"{file}: not a Python file, whose name ends in .py; {HOW}")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{file}: no such file; {HOW}") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}; {HOW}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _thing(place: Place) -> ModelBuilder:
    """What a file calls by that name, if it is something that builds models."""
    module = _module(place.file)
    if place.thing not in vars(module):
        defined = {n: v for n, v in vars(module).items() if callable(v)}
        here = [n for n, v in defined.items() if getattr(v, "__module__", None) == module.__name__]
        raise UnknownName("model", place.thing, here, str(place.file))
    thing = vars(module)[place.thing]
    if isinstance(thing, nn.Module) or not callable(thing):
        raise ConfigurationError(
            f"{place.file}: {place.thing} is {describe_value(thing)}; name a function or class that makes a new "
            f"torch.nn.Module each time it is called, for every learner needs weights of its own"
        )
    builder: ModelBuilder = thing
    return builder


def _module(file: Path) -> ModuleType:
    """The file as a module, run the first time it is asked for and when it has changed."""
    content = _content(file)
    key = file, _digest(content)
    if key not in _read:
        _read[key] = _run(file, content)
    return _read[key]


def _run(file: Path, content: bytes) -> ModuleType:
    """Run a file as a module with a name of its own, so that no other of that name is in its way.

    Compiled here, for Python's own cache takes a file of the same size, saved in the same second, for the same.
    """
    mark = _digest(str(file).encode() + b"\0" + content)[:16]
    module = ModuleType(f"consilience_own_{file.stem}_{mark}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # classes look for their module there
    importlib.invalidate_caches()  # a file beside it may be as new
    try:
        # Random numbers drawn while a file is read would make the first learner's weights other than the next one's.
        with _in_words(file, "cannot be imported"), beside(file), torch.random.fork_rng(devices=[]):
            exec(compile(content, str(file), "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def failure(error: BaseException) -> str:
    """What somebody's code raised, and in which line of which file."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else said


@contextmanager
def _in_words(file: Path, what: str) -> Iterator[None]:
    """Say which line of somebody's file failed, and how."""
    try:
        yield
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConfigurationError(f"{file}: {what}{_line(file, error)}: {said}; mend it and try again") from error


def _line(file: Path, error: BaseException) -> str:
    """The last line of the file that was at work, where it was."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f" (line {error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""
