"""Checks that settings make of themselves: a value out of place is refused with what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from consilience.config.schedules import Schedule
from consilience.errors import ConfigurationError, UnknownName


def one_of(what: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a word that is not among those allowed."""
    if value not in (names := list(allowed)):
        raise UnknownName(what, str(value), names)


def whole(what: str, value: int, low: int = 1) -> None:
    """Refuse what is not a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"{what} is {value!r}; it must be a whole number, {low} or more")


def number(what: str, value: float, low: float = 0.0) -> None:
    """Refuse what is not a finite number of at least `low`; a schedule must be so all the way."""
    least = value.lowest if isinstance(value, Schedule) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or least < low:
        raise ConfigurationError(f"{what} is {value!r}; it must be a finite number, {low:g} or more")


def steady(what: str, value: float, low: float = 0.0) -> None:
    """Refuse what is no number, or one that changes with the rounds."""
    if isinstance(value, Schedule):
        raise ConfigurationError(f"{what} is {value}, and cannot change with the rounds; give one number")
    number(what, value, low)
