"""Checks of values: a refused value is named with what was received and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, TypeGuard

from pydantic import ValidationError

from consilience.errors import ConfigurationError, UnknownName

_KINDS = {
    "bool",
    "callable",
    "int",
    "str",
    "float",
    "tuple[str, ...]",
    "tuple[int, ...]",
    "function-before[_rate(), union[float,str]]",
}
"""pydantic's names of the types a value may have, which are part of an error's location."""


def check_choice(what: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a value that is not one of those allowed."""
    if value not in (names := list(allowed)):
        raise UnknownName(what, str(value), names)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, Python's or NumPy's; true, 2.0 and "2" are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(what: str, value: int, low: int = 1) -> None:
    """Refuse a value that is not an integer of at least `low`."""
    if not is_integer(value) or value < low:
        raise ConfigurationError(f"{what} is {value!r}; it must be a whole number, {low} or more")


def check_number(what: str, value: float, low: float = 0.0) -> None:
    """Refuse a value that is not a finite number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < low:
        raise ConfigurationError(f"{what} is {value!r}; it must be a finite number, {low:g} or more")


def describe_error(error: ValidationError) -> str:
    """What is wrong with settings; if a value may have several types, one sentence for all of them."""
    wrong: dict[str, list[str]] = {}
    for each in error.errors():
        value, reason = _describe_one(each)
        wrong.setdefault(value, []).append(reason)
    must = "it must be "
    return "; ".join(
        " or ".join([f"{value}{reasons[0]}", *(more.removeprefix(must) for more in reasons[1:])])
        for value, reasons in wrong.items()
    )


def _describe_one(error: Any) -> tuple[str, str]:
    """The refused value, and why it was refused."""
    where = ".".join(part for part in error["loc"] if isinstance(part, str) and part not in _KINDS) or "settings"
    allowed = {key: value for key, value in error.get("ctx", {}).items() if key != "error"}
    words = {
        "greater_than_equal": "it must be {ge} or more",
        "greater_than": "it must be more than {gt}",
        "less_than_equal": "it must be {le} or less",
        "less_than": "it must be less than {lt}",
        "int_parsing": "it must be a whole number",
        "int_type": "it must be a whole number",
        "int_from_float": "it must be a whole number",
        "float_parsing": "it must be a number",
        "float_type": "it must be a number",
        "literal_error": "it must be {expected}",
        "string_type": "it must be a word",
        "callable_type": "it must be a function",
        "bool_type": "it must be true or false",
        "bool_parsing": "it must be true or false",
        "list_type": "it must be a list",
        "tuple_type": "it must be a list",
        "dict_type": "it must be a table",
        "model_type": "it must be a table",
    }
    if error["type"] == "missing":
        return where, " is missing; give it a value"
    plain = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and isinstance(error["input"], Mapping):
        return f"{where}: ", plain  # of an entire table, which is not shown
    reason = words[error["type"]].format(**allowed) if error["type"] in words else plain[:1].lower() + plain[1:]
    return f"{where} is {error['input']!r}; ", reason
