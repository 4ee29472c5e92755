"""Parse settings written as a word with numbers: `word`, `word(1, 2)` or `word:1,2`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from consilience.errors import ConfigurationError, UnknownName


class Number(NamedTuple):
    """One number that follows a word: its name, a check of its value, and a description of the allowed values."""

    name: str
    fits: Callable[[float], bool]
    allowed: str
    advice: str = ""


@dataclass(frozen=True)
class Form:
    """The numbers that follow a word; with `more`, the last of them may be repeated."""

    numbers: tuple[Number, ...] = ()
    more: bool = False

    def usage(self, word: str) -> str:
        """How to write the word, with the names of its numbers: `dirichlet(alpha)`."""
        names = [number.name for number in self.numbers] + ["..."] * self.more
        return f"{word}({', '.join(names)})" if names else word


class ParsedSetting(NamedTuple):
    """The parsed value: a known word and its numbers."""

    word: str
    numbers: tuple[float, ...]


def parse_setting(key: str, text: str, forms: Mapping[str, Form]) -> ParsedSetting:
    """Parse `text`, a value of the setting `key`, into a word and numbers; anything not in `forms` is refused."""
    match = re.fullmatch(r"([^(:]*)(?:\((.*)\)|:(.*))?", text.strip())
    word, inside = (match[1].strip(), match[2] if match[3] is None else match[3]) if match else (text, None)
    if word not in forms:
        raise UnknownName(key, word, forms)
    form = forms[word]
    if inside is None and form.numbers:
        raise UnknownName(key, word, [form.usage(word)])
    given = [each.strip() for each in (inside or "").split(",")] if inside or form.numbers else []
    _check_count(key, text, word, form, len(given))
    # The last number's name and check also apply to its repetitions.
    names = form.numbers + form.numbers[-1:] * (len(given) - len(form.numbers))
    return ParsedSetting(word, tuple(_parse_number(key, text, *pair) for pair in zip(names, given, strict=True)))


def _check_count(key: str, text: str, word: str, form: Form, given: int) -> None:
    wanted = len(form.numbers)
    if given != wanted and not (form.more and given > wanted):
        least = f"{wanted} or more" if form.more else str(wanted or "no")
        raise ConfigurationError(
            f"{key} {text!r}: {word} takes {least} number{'s' * (form.more or wanted != 1)}, got {given}; "
            f"write {form.usage(word)}"
        )


def _parse_number(key: str, text: str, number: Number, given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and number.fits(value)):
        advice = f"; {number.advice}" if number.advice else ""
        raise ConfigurationError(f"{key} {text!r}: {number.name} must be {number.allowed}, got {given!r}{advice}")
    return value
