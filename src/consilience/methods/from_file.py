"""Methods from a user's file: "path/to/mine.py:spread"."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Exchange
from consilience.method import Method
from consilience.user_code import defined_names, file_digest, load_module, split_file_name

_USAGE = "write path/to/file.py:NAME, with settings path/to/file.py:NAME:KEY=VALUE"
_KINDS = "a Method, an Exchange, a class of exchanges, or a function that returns exchanges, a Role or a Method"


def load_definition(name: str) -> Any:
    """What FILE.py:NAME stands for: a Method, an exchange, an exchange class or a function."""
    file, thing = split_file_name(name)
    module = load_module(file, _USAGE)
    if not thing:
        raise ConfigurationError(
            f"{file} names a file and no method in it; {_USAGE}. It has: {', '.join(_candidates(module)) or 'none'}"
        )
    if thing not in vars(module):
        raise UnknownName("method", thing, _candidates(module), of=str(file))
    found = vars(module)[thing]
    if isinstance(found, FunctionType) and found.__module__.partition(".")[0] == "consilience":
        raise UnknownName(
            "method", thing, _candidates(module), of=str(file)
        )  # `simulate` is no method, though imported
    if not is_definition(found):
        raise ConfigurationError(f"{file}: {thing}: {describe_wrong(found)}")
    return found


def is_definition(thing: Any) -> bool:
    """Whether a method can be made of something."""
    return isinstance(thing, Method | Exchange) or (callable(thing) and not _other_class(thing))


def _other_class(thing: Any) -> bool:
    return isinstance(thing, type) and not issubclass(thing, Exchange)


def _candidates(module: ModuleType) -> list[str]:
    """Names of the methods that a file itself defines."""
    made = [n for n, v in vars(module).items() if isinstance(v, Method | Exchange)]
    own = [n for n in defined_names(module) if not n.startswith("_") and not _other_class(vars(module)[n])]
    return [*own, *made]


def describe_wrong(thing: Any) -> str:
    """Why something is not a method, for a message that has named it."""
    what = f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"
    return f"it is {what}, and a method is {_KINDS}"


def method_digest(name: str) -> str:
    """SHA-256 of the contents of the file in FILE.py:NAME, to notice that a method's code has changed."""
    return file_digest(split_file_name(name)[0], _USAGE)
