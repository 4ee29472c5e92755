"""Schedules: numbers that change with the rounds, such as `ramp(0, 10, 20)`, which rises from 0 to 10 over 20 rounds.

A schedule is not a number: it has a value only in a round, `schedule.at(round)`. A setting that may be a number or a
schedule is typed `Rate`, and `value_at(rate, round)` is its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from consilience.config.parsing import Form, Number, parse_setting
from consilience.errors import ConfigurationError, UnknownName

_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "ramp": lambda progress: progress,
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
}
_FROM, _TO = (Number(name, math.isfinite, "a finite number") for name in ("FIRST", "LAST"))
_OVER = Number("ROUNDS", lambda n: n >= 1 and n.is_integer(), "a whole number, 1 or more")
_FORMS = {shape: Form((_TO,) if shape == "constant" else (_FROM, _TO, _OVER)) for shape in _SHAPES}
_Thing = TypeVar("_Thing")


@dataclass(frozen=True, repr=False)
class Schedule:
    """From `first` to `last` over a number of rounds: in a straight line ("ramp") or slowly at both ends ("cosine").

    >>> Schedule("ramp", 0.0, 10.0, 20).at(5)
    2.5
    """

    shape: str
    first: float
    last: float
    over: int

    def __post_init__(self) -> None:
        shape, first, last, over = self.shape, self.first, self.last, self.over
        if shape not in _SHAPES:
            raise UnknownName("schedule", shape, _SHAPES)
        if not (math.isfinite(first) and math.isfinite(last)):
            raise ConfigurationError(f"{shape}({first:g}, {last:g}, {over}): first and last must be finite numbers")
        if over != int(over) or over < 1:
            raise ConfigurationError(
                f"{shape}({first:g}, {last:g}, {over:g}): the number of rounds must be a whole number, 1 or more"
            )
        for name, value in (("first", float(first)), ("last", float(last)), ("over", int(over))):
            object.__setattr__(self, name, value)

    @property
    def lowest(self) -> float:
        """The smallest value it takes."""
        return min(self.first, self.last)

    @property
    def highest(self) -> float:
        """The largest value it takes."""
        return max(self.first, self.last)

    def at(self, round_: int) -> float:
        """Its value in a round; 0 is before the first."""
        done = _SHAPES[self.shape](min(round_ / self.over, 1.0))
        return self.first + (self.last - self.first) * done

    def __repr__(self) -> str:
        if self.shape == "constant":
            return f"constant({self.last:g})"
        return f"{self.shape}({self.first:g}, {self.last:g}, {self.over})"

    def __bool__(self) -> bool:
        return bool(as_number(self))  # raises: a schedule has no value outside a round


Rate = float | Schedule
"""A number, or a schedule of numbers."""


def scheduled(value: Any) -> Any:
    """A setting spelled as a schedule, such as "ramp(0, 10, 20)", as a `Schedule`; any other value unchanged."""
    if not isinstance(value, str) or "(" not in value:
        return value
    shape, numbers = parse_setting("schedule", value, _FORMS)
    first, last, over = numbers if len(numbers) == 3 else (numbers[0], numbers[0], 1)
    return Schedule(shape, first, last, int(over))


def value_at(value: Rate, round_: int) -> float:
    """The value of a number, or of a schedule of numbers, in a round."""
    return value.at(round_) if isinstance(value, Schedule) else float(value)


def as_number(value: Rate) -> float:
    """A setting as a number, where the round is known: engines have put its value in the place of a schedule."""
    if isinstance(value, Schedule):
        raise TypeError(f"{value} is a schedule and not a number; its value in a round is schedule.at(round)")
    return value


def highest_value(value: Rate) -> float:
    """A number, or the largest value of a schedule; 0 where a weight is 0 in every round."""
    return value.highest if isinstance(value, Schedule) else value


def at_round(thing: _Thing, round_: int) -> _Thing:
    """A frozen dataclass with the value that each schedule among its fields has in a round."""
    found = {f.name: getattr(thing, f.name) for f in fields(thing)}  # type: ignore[arg-type]
    schedules = {name: value for name, value in found.items() if isinstance(value, Schedule)}
    if not schedules:
        return thing
    concrete = copy(thing)
    for name, schedule in schedules.items():
        object.__setattr__(concrete, name, schedule.at(round_))
    return concrete


def number_or_schedule(what: str, value: Rate, low: float = 0.0, high: float = math.inf) -> None:
    """Refuse a value that is neither a finite number from `low` to `high` nor a schedule of such numbers."""
    ends = (value.first, value.last) if isinstance(value, Schedule) else (value,)
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v) for v in ends) or not (
        low <= min(ends) and max(ends) <= high
    ):
        limits = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        raise ConfigurationError(f"{what} is {value!r}; it must be a finite number, {limits}")


def constant_number(what: str, value: Rate, low: float = 0.0) -> None:
    """Refuse a value that is not a finite number of at least `low`, and a schedule."""
    if isinstance(value, Schedule):
        raise ConfigurationError(f"{what} is {value}, and cannot change with the rounds; give one number")
    number_or_schedule(what, value, low)
