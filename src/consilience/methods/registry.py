"""The names of methods: registered in this process, or by installed packages as entry points `consilience.methods`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, overload

from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Exchange
from consilience.method import Method
from consilience.methods import from_file
from consilience.user_code import failure, is_file_name

Definition = Method | Exchange | Callable[..., Any]
"""What a method's name stands for: a Method, an exchange, an exchange class, or a function of the method's settings
that returns exchanges, a Role or a Method."""
_Registered = TypeVar("_Registered", bound=Definition)

GROUP = "consilience.methods"
METHODS: dict[str, Definition] = {}
"""The registered methods by name, the built-in ones first."""
_reserved: set[str] = set()


@overload
def register_method(name: str) -> Callable[[_Registered], _Registered]: ...
@overload
def register_method(name: str, definition: _Registered) -> _Registered: ...
@overload
def register_method(name: _Registered) -> _Registered: ...
def register_method(name: Any, definition: Any = None) -> Any:
    """Make a method known by a name: in `simulate`, and in every command that this process runs.

    definition: a function of the method's settings that returns exchanges, a Role or a Method; an Exchange or a class
    of exchanges, whose fields are then the settings; or a Method, which has no settings. As a decorator without a name,
    the function's or class's own is used, in lower case and with dashes.

        >>> @register_method
        ... def two_prototypes(kd: float = 10.0):
        ...     return (Prototypes(weight=kd), Prototypes(weight=kd, name="second"))  # doctest: +SKIP
    """
    if not isinstance(name, str):
        return register_method(_own_name(name), name)
    if not name or any(c in name for c in ":,= \t\n/") or is_file_name(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a method; choose one without ':', ',', '=', '/', spaces and '.py'"
        )
    if name in _reserved:
        raise ConfigurationError(f"there is a built-in method {name!r}; choose another name")
    if definition is None:
        return lambda given: register_method(name, given)
    if not from_file.is_definition(definition):
        raise ConfigurationError(f"method {name!r}: {from_file.describe_wrong(definition)}")
    METHODS[name] = definition
    return definition


def reserve_names() -> tuple[str, ...]:
    """Keep the names registered so far from being registered again; these names."""
    _reserved.update(METHODS)
    return tuple(METHODS)


def _own_name(thing: Any) -> str:
    found = thing.name if isinstance(thing, Method | Exchange) else getattr(thing, "__name__", "")
    return str(found).lower().replace("_", "-")


@cache
def _packaged() -> dict[str, EntryPoint]:
    """Methods of installed packages, not loaded yet; a built-in name stays the built-in method's."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _reserved}


def method_names() -> list[str]:
    """The names of all methods: registered, then those of installed packages."""
    return [*METHODS, *(name for name in _packaged() if name not in METHODS)]


def find_definition(name: str) -> Definition:
    """What a method is made of, by its name or FILE.py:NAME."""
    if is_file_name(name):
        own: Definition = from_file.load_definition(name)
        return own
    if name in METHODS:
        return METHODS[name]
    if name not in _packaged():
        raise UnknownName("method", name, method_names(), also="a method of your own is named FILE.py:NAME")
    point = _packaged()[name]
    package = point.dist.name if point.dist is not None else "unknown"
    try:
        found: Definition = point.load()
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"method {name!r} of package {package!r} cannot be loaded from {point.value!r}: {failure(error)}; mend or "
            f"remove the package, or choose another method"
        ) from error
    if not from_file.is_definition(found):
        raise ConfigurationError(f"method {name!r} of package {package!r}: {from_file.describe_wrong(found)}")
    return found
