"""What the command line says of methods: of built-in ones without importing torch; others are loaded when named."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from consilience.config.built_in_methods import BUILT_IN, KnownMethod
from consilience.errors import ConfigurationError, UnknownName
from consilience.user_code import is_file_name


def known_names() -> list[str]:
    """The names of all methods; those registered by this process are known once `consilience.methods` is imported."""
    if "consilience.methods" in sys.modules:
        from consilience.methods import method_names

        return method_names()
    return [*BUILT_IN, *(point.name for point in entry_points(group="consilience.methods"))]


def known_method(name: str, settings: dict[str, Any] | None = None) -> KnownMethod:
    """A method by its name; one that is not built in is loaded, with these settings, which imports torch."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    from consilience.methods import build_method, settings_as_text
    from consilience.methods.task_kinds import kinds_of

    built = build_method(name, settings)
    return KnownMethod(built.summary, settings_as_text(name), kinds_of(built))


def refuse_unknown_method(name: str, settings: Sequence[str] = ()) -> None:
    """Refuse a method's name, or a setting of a built-in one, that does not exist; values are checked by the method."""
    if not is_file_name(name) and name not in known_names():
        raise UnknownName("method", name, known_names(), also="a method of your own is named FILE.py:NAME")
    for key in settings:
        if name in BUILT_IN and key not in BUILT_IN[name].settings:
            raise UnknownName("setting", key, BUILT_IN[name].settings, of=f"method {name!r}")


def refuse_method_setting(name: str, keys: Sequence[str]) -> None:
    """Refuse a setting of the method that was given as one of the run; the error says how to write it."""
    for key in keys:
        if name and key in known_method(name).settings:
            raise ConfigurationError(f"{key!r} is a setting of the method {name!r}; write --set method.{key}=VALUE")


def complete_method(incomplete: str) -> list[str]:
    """Names of methods that begin like this, for the shell's completion."""
    return [name for name in known_names() if name.startswith(incomplete)]
