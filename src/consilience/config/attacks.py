"""The setting `attack` of a group: how its learners misbehave, for studies of means that resist."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.config.parsing import Form, Number, parse_setting
from consilience.errors import ConfigurationError

_TIMES = Form((Number("K", lambda value: value > 0, "a number above 0"),))
_FORMS = {
    "sign-flip": Form(),
    "scale": _TIMES,
    "claim": _TIMES,
    "prototype-swap": Form(),
    "label-flip": Form(),
}


@dataclass(frozen=True)
class Attack:
    """What misbehaving learners do.

    factor: their uploads are multiplied by it. claim: so are the sample counts that they give. swaps_rows: the values
    of each class are uploaded as those of the next. flips_labels: class c of their data is labeled C - 1 - c.
    """

    factor: float = 1.0
    claim: float = 1.0
    swaps_rows: bool = False
    flips_labels: bool = False

    @property
    def changes_uploads(self) -> bool:
        """Whether it is in the uploads, and not in the data."""
        return self.factor != 1 or self.claim != 1 or self.swaps_rows


def parse_attack(text: str) -> Attack:
    """An attack by its name, or several joined by +; none is none.

    >>> parse_attack("sign-flip+scale(5)").factor
    -5.0
    """
    if text.strip() == "none":
        return Attack()
    found = [parse_setting("attack", part, _FORMS) for part in text.split("+")]
    words = {each.word: each.numbers for each in found}
    if len(words) < len(found):
        raise ConfigurationError(f"attack {text!r} names one attack twice; once is enough")
    factor = words["scale"][0] if "scale" in words else 1.0
    return Attack(
        factor=-factor if "sign-flip" in words else factor,
        claim=words["claim"][0] if "claim" in words else 1.0,
        swaps_rows="prototype-swap" in words,
        flips_labels="label-flip" in words,
    )
