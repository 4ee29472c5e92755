"""Numbers that change with the rounds: `ramp(0, 10, 20)` goes from 0 to 10 over twenty rounds, and stays there.

A schedule is a float, the one it comes to in the end, so it may stand wherever a weight or a rate does; the simulation
asks it what it is in each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from consilience.config.parsing import Form, Number, read
from consilience.errors import ConfigurationError, UnknownName

_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "ramp": lambda progress: progress,
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
}
_FROM, _TO = (Number(name, math.isfinite, "a finite number") for name in ("FIRST", "LAST"))
_OVER = Number("ROUNDS", lambda n: n >= 1 and n.is_integer(), "a whole number, 1 or more")
_FORMS = {shape: Form((_TO,) if shape == "constant" else (_FROM, _TO, _OVER)) for shape in _SHAPES}


class Schedule(float):
    """From `first` to `last` over so many rounds: in a straight line ("ramp") or slowly at both ends ("cosine").

    >>> Schedule("ramp", 0.0, 10.0, 20).at(5)
    2.5
    """

    shape: str
    first: float
    over: int

    def __new__(cls, shape: str, first: float, last: float, over: int) -> Schedule:
        """A schedule that ends at `last`."""
        if shape not in _SHAPES:
            raise UnknownName("schedule", shape, _SHAPES)
        if not (math.isfinite(first) and math.isfinite(last)):
            raise ConfigurationError(f"{shape}({first:g}, {last:g}, {over}): a schedule goes between finite numbers")
        if over != int(over) or over < 1:
            raise ConfigurationError(f"{shape}({first:g}, {last:g}, {over:g}): it must take whole rounds, 1 or more")
        made = super().__new__(cls, last)
        made.shape, made.first, made.over = shape, float(first), int(over)
        return made

    @property
    def last(self) -> float:
        """What it comes to."""
        return float(self)

    @property
    def lowest(self) -> float:
        """The smallest value it takes."""
        return min(self.first, self.last)

    def at(self, round_: int) -> float:
        """Its value in a round; 0 is before the first."""
        done = _SHAPES[self.shape](min(round_ / self.over, 1.0))
        return self.first + (self.last - self.first) * done

    def __repr__(self) -> str:
        if self.shape == "constant":
            return f"constant({self.last:g})"
        return f"{self.shape}({self.first:g}, {self.last:g}, {self.over})"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self.first or self.last)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and repr(self) == repr(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Schedule, (self.shape, self.first, self.last, self.over)


def scheduled(value: Any) -> Any:
    """A setting that is spelled as a schedule, as one; whatever else it is stays as it is."""
    if not isinstance(value, str) or "(" not in value:
        return value
    shape, numbers = read("schedule", value, _FORMS)
    first, last, over = numbers if len(numbers) == 3 else (numbers[0], numbers[0], 1)
    return Schedule(shape, first, last, int(over))


def value_at(value: float, round_: int) -> float:
    """What a number, or a schedule of numbers, is in a round."""
    return value.at(round_) if isinstance(value, Schedule) else float(value)


def number_or_schedule(what: str, value: float, low: float = 0.0) -> None:
    """Refuse what is not a finite number of at least `low`, nor a schedule of such numbers."""
    least = value.lowest if isinstance(value, Schedule) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or least < low:
        raise ConfigurationError(f"{what} is {value!r}; it must be a finite number, {low:g} or more")


def constant_number(what: str, value: float, low: float = 0.0) -> None:
    """Refuse what is not a finite number of at least `low`, and a number that changes with the rounds."""
    if isinstance(value, Schedule):
        raise ConfigurationError(f"{what} is {value}, and cannot change with the rounds; give one number")
    number_or_schedule(what, value, low)
