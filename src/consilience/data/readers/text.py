"""Texts of several owners as samples: the input is a window of characters, the label is the next one.

A character's code is its position in the alphabet. Codes are names, not amounts, so they are never scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import TEST_SHARE, check_test_share
from consilience.data.raw_dataset import RawDataset
from consilience.errors import DataError
from consilience.validation import check_integer

LENGTH = 80
"""Characters in an input."""
STEP = 10
"""Characters from the start of one sample to the start of the next."""

_NAMES = {" ": "space", "\n": "newline", "\t": "tab", "\r": "return"}


def text_windows(
    what: str,
    texts: Mapping[str, str],
    *,
    length: int = LENGTH,
    step: int = STEP,
    test_share: float = TEST_SHARE,
    alphabet: str | None = None,
    source: str = "",
) -> RawDataset:
    """The samples of all owners, owner by owner; `what` names the data set in error messages.

    The last `test_share` of each owner's characters are for tests, and no sample is partly training and partly test.
    The alphabet is the one given, or all characters of the texts in sorted order.
    """
    check_integer("length", length)
    check_integer("step", step)
    check_test_share(test_share)
    if not isinstance(texts, Mapping):
        raise DataError(
            f"{what}: texts must be given by owner, such as {{'ann': 'once upon a time'}}, got {type(texts).__name__}"
        )
    if not texts:
        raise DataError(f"{what}: there are no owners; give a text for each, such as {{'ann': 'once upon a time'}}")
    for owner, text in texts.items():
        if not isinstance(owner, str) or not isinstance(text, str):
            raise DataError(f"{what}: owners and texts must be strings, got {owner!r} with {type(text).__name__}")
        if not text:
            raise DataError(f"{what}: owner {owner!r} has no text; leave it out")
    known = "".join(sorted(set().union(*texts.values()))) if alphabet is None else alphabet
    check_alphabet(what, known)
    kind = np.min_scalar_type(len(known) - 1)
    train: list[NDArray[Any]] = []
    test: list[NDArray[Any]] = []
    for owner, text in texts.items():
        codes = _codes(f"{what}: owner {owner!r}", text, known).astype(kind)  # (characters,)
        tests = int(test_share * len(codes) + 0.5)
        halves = codes[: len(codes) - tests], codes[len(codes) - tests :]
        if min(map(len, halves)) < length + 1:
            raise DataError(
                f"{what}: owner {owner!r} has {len(codes)} characters, {len(halves[0])} for training and {tests} for "
                f"tests; each part needs at least {length + 1}: leave it out, or use a smaller length"
            )
        for half, found in zip(halves, (train, test), strict=True):
            found.append(np.lib.stride_tricks.sliding_window_view(half, length + 1)[::step])  # (n_u, length + 1)
    inputs, test_inputs = np.concatenate(train), np.concatenate(test)  # (n, length + 1), (m, length + 1)
    return RawDataset(
        inputs[:, :-1],
        inputs[:, -1].astype(np.int64),
        test_inputs[:, :-1],
        test_inputs[:, -1].astype(np.int64),
        len(known),
        labels=tuple(map(character_name, known)),
        source=source,
        owners=np.repeat(np.arange(len(train)), [len(mine) for mine in train]),
        owner_names=tuple(texts),
        alphabet=known,
    )


def character_name(character: str) -> str:
    """A visible name for a character: itself, or a word.

    >>> name_of("a"), name_of(" "), name_of(chr(7))
    ('a', 'space', 'U+0007')
    """
    return _NAMES.get(character) or (character if character.isprintable() else f"U+{ord(character):04X}")


def check_alphabet(what: str, alphabet: str) -> None:
    """Refuse an alphabet with fewer than two characters, or with one twice."""
    if not isinstance(alphabet, str) or len(alphabet) < 2:
        raise DataError(f"{what}: an alphabet needs at least two characters, got {alphabet!r}")
    twice = [character for place, character in enumerate(alphabet) if character in alphabet[:place]]
    if twice:
        raise DataError(f"{what}: {twice[0]!r} is in the alphabet twice; give each character once")


def _codes(what: str, text: str, alphabet: str) -> NDArray[np.intp]:
    """The position of each character in the alphabet, (characters,)."""
    points, known = _code_points(text), _code_points(alphabet)  # (characters,), (alphabet,)
    order = np.argsort(known)
    places = order[np.minimum(np.searchsorted(known, points, sorter=order), len(known) - 1)]
    outside = known[places] != points
    if outside.any():
        where = int(np.argmax(outside))
        raise DataError(
            f"{what}: character {where} is {text[where]!r}, which is not in the alphabet of {len(alphabet)}; "
            f"remove it, or give an alphabet that has it"
        )
    return places


def _code_points(text: str) -> NDArray[np.uint32]:
    """The Unicode code point of each character, (characters,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
