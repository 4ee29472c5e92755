"""The setting `augment`: crop and flip by name, or a transform of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consilience.config.parsing import Form, Number, parse_setting
from consilience.errors import ConfigurationError
from consilience.user_code import absolute_name, is_file_name

Transform = Callable[..., Any]
"""A function of one sample that returns a changed one of the same shape."""

_FORMS = {
    "crop": Form((Number("pixels", lambda value: value >= 1 and value == int(value), "a whole number from 1"),)),
    "flip": Form(),
}


@dataclass(frozen=True)
class AugmentSetting:
    """What `augment` asks for.

    crop: pixels by which an image is padded before it is cropped to its size; 0: an eighth of its size; None: no crop.
    own: a transform, or FILE.py:NAME of one.
    """

    crop: int | None = None
    flip: bool = False
    own: str | Transform = ""

    def __bool__(self) -> bool:
        return self.crop is not None or self.flip or bool(self.own)


def parse_augment(given: str | Transform) -> AugmentSetting:
    """The value of `augment`: none, crop, crop(PIXELS), flip, both joined by +, FILE.py:NAME, or a function.

    >>> parse_augment("crop(2)+flip")
    AugmentSetting(crop=2, flip=True, own='')
    """
    if not isinstance(given, str):
        return AugmentSetting(own=given)
    if is_file_name(given):
        return AugmentSetting(own=absolute_name(given))
    if given.strip() == "none":
        return AugmentSetting()
    crop: int | None = None
    words = []
    for part in given.split("+"):
        if part.strip() == "crop":
            words.append("crop")
            crop = 0
            continue
        word, numbers = parse_setting("augment", part, _FORMS)
        words.append(word)
        crop = int(numbers[0]) if word == "crop" else crop
    if len(set(words)) < len(words):
        raise ConfigurationError(f"augment {given!r} names {max(words, key=words.count)!r} twice; once is enough")
    return AugmentSetting(crop, "flip" in words)
