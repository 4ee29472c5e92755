"""From a method's name and settings to a `Method`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from typing import Any

from consilience.config.schedules import Schedule, scheduled
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Exchange
from consilience.method import Method, Role
from consilience.methods.from_file import describe_wrong
from consilience.methods.registry import Definition, find_definition
from consilience.user_code import is_file_name, naming_failures, short_name, sibling_imports, split_file_name
from consilience.wire.encodings import ENCODINGS, Encoding, encoding_name

Settings = Mapping[str, Any]
_REQUIRED = inspect.Parameter.empty


def settings_of(name: str) -> dict[str, Any]:
    """The settings a method takes, with their defaults."""
    return _defaults(find_definition(name))


def settings_as_text(name: str) -> dict[str, Any]:
    """The settings a method takes, with their defaults as a settings file writes them; None where there is none."""
    return {key: _as_text(value) for key, value in settings_of(name).items()}


def _as_text(value: Any) -> bool | int | float | str | None:
    if isinstance(value, Encoding):
        return encoding_name(value)
    if isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, Schedule) else None


def build_method(name: str, settings: Settings | None = None) -> Method:
    """The method of that name, or of FILE.py:NAME, with these settings.

    Unknown names and settings are refused with the nearest known one.
    """
    definition, given = find_definition(name), dict(settings or {})
    if isinstance(definition, Method):
        if given:
            raise ConfigurationError(
                f"method {name!r} is a Method object, which has no settings, so {next(iter(given))!r} cannot be set; "
                f"name a function of its settings instead, or an exchange"
            )
        return replace(definition, name=short_name(name), source=name)
    defaults, rates = _defaults(definition), _rates(definition)
    for key in given:
        if key not in defaults:
            raise UnknownName("setting", key, defaults, of=f"method {name!r}")
    checked = {key: _checked(name, key, value, defaults[key], key in rates) for key, value in given.items()}
    for key, default in defaults.items():
        if default is _REQUIRED and key not in checked:
            raise ConfigurationError(f"method {name!r} needs its setting {key!r}; give it, {name}:{key}=VALUE")
    with _naming_file(name):
        made = _with_fields(definition, checked) if isinstance(definition, Exchange) else definition(**checked)
    about = type(definition) if isinstance(definition, Exchange) else definition
    summary = next(iter((inspect.getdoc(about) or "").splitlines()), "")
    return _as_method(name, made, summary, given)


def _with_fields(exchange: Exchange, values: Settings) -> Any:
    return replace(exchange, **values)  # type: ignore[type-var]  # exchanges are dataclasses


def _as_method(name: str, made: Any, summary: str, given: Settings) -> Method:
    """A Method of what a definition made: exchanges, a role or a method."""
    if isinstance(made, Exchange):
        made = (made,)
    if isinstance(made, tuple | list) and all(isinstance(e, Exchange) for e in made):
        made = Role(exchanges=tuple(made))
    if isinstance(made, Role):
        made = Method(short_name(name), {"learner": made})
    if not isinstance(made, Method):
        raise ConfigurationError(f"method {name!r}: what it returns is not a method: {describe_wrong(made)}")
    return replace(made, name=short_name(name), summary=summary or made.summary, settings=dict(given), source=name)


def override_settings(method: Method, settings: Settings) -> Method:
    """The same method with some settings changed; a Method put together by hand has none to change."""
    if not settings:
        return method
    if not method.source or build_method(method.source, method.settings) != method:
        raise ConfigurationError(
            f"method {method.name!r} was put together by hand, so {next(iter(settings))!r} cannot be set by name; give "
            f"its learners roles of their own, or make it a function of its settings and register it"
        )
    return build_method(method.source, {**method.settings, **settings})


def _defaults(definition: Definition) -> dict[str, Any]:
    """The settings of a definition: the parameters of a function, or the fields of an exchange but its name."""
    if isinstance(definition, Method):
        return {}
    if isinstance(definition, Exchange):
        own = [f for f in fields(definition) if f.init and f.name != "name"]  # type: ignore[arg-type]
        return {f.name: getattr(definition, f.name) for f in own}
    if isinstance(definition, type) and issubclass(definition, Exchange):
        own = [f for f in fields(definition) if f.init and f.name != "name"]  # type: ignore[arg-type]
        return {f.name: _REQUIRED if f.default is MISSING else f.default for f in own if f.default_factory is MISSING}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default for p in inspect.signature(definition).parameters.values() if p.kind in named}


def _rates(definition: Definition) -> set[str]:
    """Settings that may be schedules: those whose default is a fraction, and the fields in which an exchange varies."""
    varies = getattr(definition, "varies", ())
    return {*varies, *(k for k, v in _defaults(definition).items() if isinstance(v, float | Schedule))}


@contextmanager
def _naming_file(name: str) -> Iterator[None]:
    """Where a method is in a user's file: name file, method and line of what fails; let it import from its folder."""
    if not is_file_name(name):
        yield
        return
    file, thing = split_file_name(name)
    with sibling_imports(file), naming_failures(file, f"{thing} failed"):
        yield


_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", str: "a word"}


def _checked(name: str, key: str, value: Any, default: Any, rate: bool) -> Any:
    """A setting of the kind its default has; where that is a fraction, a number or a schedule of numbers."""
    if isinstance(default, Encoding) and isinstance(value, str):
        if value not in ENCODINGS:
            raise UnknownName("encoding", value, ENCODINGS)
        return ENCODINGS[value]
    if rate:
        try:
            value = scheduled(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"method {name!r}: {key}: {error}") from None
    if isinstance(default, str) and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # a module may have a number for a name, which files and commands read as a number
    wanted = float | int | Schedule if rate else next((kind for kind in _KINDS if type(default) is kind), object)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"method {name!r}: {key} is {value!r}; it must be a finite number")
    if isinstance(value, wanted) and (wanted in (bool, object) or not isinstance(value, bool)):
        return value
    raise ConfigurationError(f"method {name!r}: {key} is {value!r}; {_allowed(key, value, default, rate)}")


def _allowed(key: str, value: Any, default: Any, rate: bool) -> str:
    """What a setting that is refused must be."""
    kind = "a number" if rate else _KINDS[type(default)]
    allowed = f"it must be {kind}, such as its default {default!r}"
    if rate:
        return f"{allowed}, or a schedule of numbers, such as 'ramp(0, 10, 20)'"
    if isinstance(default, str) and isinstance(value, float):  # 0.10 is read as 0.1, which may be another module
        return f'{allowed}; write the name {value} in quotes, {key} = "{value}", and in a shell \'{key}="{value}"\''
    return allowed
