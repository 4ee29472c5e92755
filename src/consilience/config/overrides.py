"""Settings as text: KEY=VALUE, NAME:KEY=VALUE and lists separated by commas."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from consilience.errors import ConfigurationError
from consilience.user_code import is_file_name, split_file_name


def parse_method(text: str) -> dict[str, Any]:
    """A method given as NAME or FILE.py:NAME, then :KEY=VALUE for each setting, as a table of its name and settings."""
    if is_file_name(text) and "=" not in text.partition(".py")[0]:
        file, rest = split_file_name(text)
        thing, *given = rest.split(":")
        name = f"{file}:{thing}" if thing else str(file)
    else:
        name, *given = text.split(":")
    table: dict[str, Any] = {}
    for setting in given:
        apply_override(table, setting)
    if "name" in table:
        raise ConfigurationError(f"{text!r} names the method twice")
    return {**table, "name": name}


def split_list(text: str) -> list[str]:
    """The entries of a list separated by commas, except commas in brackets or quotes."""
    parts = re.findall(r"""(?:[^,"'(]|"[^"]*"|'[^']*'|\([^)]*\)?)+""", text)
    return [part.strip() for part in parts if part.strip()]


def apply_override(settings: dict[str, Any], text: str) -> None:
    """Apply `a.b=value` to nested settings."""
    key, value = split_setting(text)
    set_nested(settings, key, parse_value(value))


def split_setting(text: str, problem: str = "not a setting; write KEY=VALUE, such as method.kd=3") -> tuple[str, str]:
    """Key and value of `a.b=value`; problem: what the error says otherwise."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigurationError(f"{text!r} is {problem}")
    return key.strip(), value.strip()


def parse_value(text: str) -> Any:
    """A value in TOML, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def set_nested(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at `a.b` in nested settings."""
    *tables, name = key.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):
            raise ConfigurationError(f"{key!r}: {table!r} has no keys of its own")
    settings[name] = value
