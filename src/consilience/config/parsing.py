"""How a choice with numbers is written: `word`, `word(1, 2)` or `word:1,2`; and how a misspelled one is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from consilience.errors import ConfigurationError, UnknownName


class Number(NamedTuple):
    """One number a word takes: its name, which numbers fit, and the same in words."""

    name: str
    fits: Callable[[float], bool]
    allowed: str
    advice: str = ""


@dataclass(frozen=True)
class Form:
    """The numbers that follow a word; with `more`, the last of them may be given again and again."""

    numbers: tuple[Number, ...] = ()
    more: bool = False

    def spelled(self, word: str) -> str:
        """The word as one would write it, with names for numbers."""
        names = [number.name for number in self.numbers] + ["..."] * self.more
        return f"{word}({', '.join(names)})" if names else word


class Spelled(NamedTuple):
    """What was read: a known word and as many fitting numbers as it takes."""

    word: str
    numbers: tuple[float, ...]


def read(key: str, text: str, forms: Mapping[str, Form]) -> Spelled:
    """The word and numbers of `text`, a value of the setting `key`; anything not in `forms` is refused."""
    match = re.fullmatch(r"([^(:]*)(?:\((.*)\)|:(.*))?", text.strip())
    word, inside = (match[1].strip(), match[2] if match[3] is None else match[3]) if match else (text, None)
    if word not in forms:
        raise UnknownName(key, word, forms)
    form = forms[word]
    if inside is None and form.numbers:
        raise UnknownName(key, word, [form.spelled(word)])
    given = [each.strip() for each in (inside or "").split(",")] if inside or form.numbers else []
    _check_count(key, text, word, form, len(given))
    # Where the last number may be repeated, it stands for all that follow.
    names = form.numbers + form.numbers[-1:] * (len(given) - len(form.numbers))
    return Spelled(word, tuple(_fitting(key, text, *pair) for pair in zip(names, given, strict=True)))


def _check_count(key: str, text: str, word: str, form: Form, given: int) -> None:
    wanted = len(form.numbers)
    if given != wanted and not (form.more and given > wanted):
        least = f"{wanted} or more" if form.more else str(wanted or "no")
        raise ConfigurationError(
            f"{key} {text!r}: {word} takes {least} number{'s' * (form.more or wanted != 1)}, got {given}; "
            f"write {form.spelled(word)}"
        )


def _fitting(key: str, text: str, number: Number, given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and number.fits(value)):
        advice = f"; {number.advice}" if number.advice else ""
        raise ConfigurationError(f"{key} {text!r}: {number.name} must be {number.allowed}, got {given!r}{advice}")
    return value
