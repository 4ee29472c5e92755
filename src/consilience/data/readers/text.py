"""Texts of several owners as samples: some characters, and which one comes next.

A character's code is its place in the alphabet. Codes are names and no amounts, so they are never scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import TEST_SHARE, check_test_share
from consilience.data.scaling import RawDataset
from consilience.errors import DataError
from consilience.validation import check_integer

LENGTH = 80
"""Characters that the next one is told from."""
STEP = 10
"""Characters from the beginning of one sample to that of the next."""

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
    """The samples of all owners, owner by owner; `what` is what errors call the data set.

    The last `test_share` of each owner's characters are for tests, and no sample is partly training and partly test.
    The alphabet is that given, or all characters that are there, in sorted order.
    """
    check_integer("length", length)
    check_integer("step", step)
    check_test_share(test_share)
    if not isinstance(texts, Mapping):
        raise DataError(
            f"{what}: texts are given by owner, such as {{'ann': 'once upon a time'}}, got {type(texts).__name__}"
        )
    if not texts:
        raise DataError(f"{what}: there are no owners; give a text for each, such as {{'ann': 'once upon a time'}}")
    for owner, text in texts.items():
        if not isinstance(owner, str) or not isinstance(text, str):
            raise DataError(f"{what}: owners and texts must be words, got {owner!r} with {type(text).__name__}")
        if not text:
            raise DataError(f"{what}: owner {owner!r} has no text; leave it out")
    known = "".join(sorted(set().union(*texts.values()))) if alphabet is None else alphabet
    check_alphabet(what, known)
    kind = np.min_scalar_type(len(known) - 1)
    train: list[NDArray[Any]] = []
    test: list[NDArray[Any]] = []
    for owner, text in texts.items():
        codes = _codes(f"{what}: owner {owner!r}", text, known).astype(kind)  # (characters,)
        kept = int(test_share * len(codes) + 0.5)
        halves = codes[: len(codes) - kept], codes[len(codes) - kept :]
        if min(map(len, halves)) < length + 1:
            raise DataError(
                f"{what}: owner {owner!r} has {len(codes)} characters, {len(halves[0])} to train and {kept} to test "
                f"with; each part needs at least {length + 1}: leave it out, or take a smaller length"
            )
        for half, found in zip(halves, (train, test), strict=True):
            found.append(np.lib.stride_tricks.sliding_window_view(half, length + 1)[::step])  # (n_u, length + 1)
    inputs, tests = np.concatenate(train), np.concatenate(test)  # (n, length + 1), (m, length + 1)
    return RawDataset(
        inputs[:, :-1],
        inputs[:, -1].astype(np.int64),
        tests[:, :-1],
        tests[:, -1].astype(np.int64),
        len(known),
        labels=tuple(map(character_name, known)),
        source=source,
        owners=np.repeat(np.arange(len(train)), [len(mine) for mine in train]),
        owner_names=tuple(texts),
        alphabet=known,
    )


def character_name(character: str) -> str:
    """What a character is called where it has to be seen: itself, or a word.

    >>> name_of("a"), name_of(" "), name_of(chr(7))
    ('a', 'space', 'U+0007')
    """
    return _NAMES.get(character) or (character if character.isprintable() else f"U+{ord(character):04X}")


def check_alphabet(what: str, alphabet: str) -> None:
    """Refuse an alphabet in which a character has no code of its own, or with which there is nothing to tell apart."""
    if not isinstance(alphabet, str) or len(alphabet) < 2:
        raise DataError(f"{what}: an alphabet needs at least two characters, got {alphabet!r}")
    twice = [character for place, character in enumerate(alphabet) if character in alphabet[:place]]
    if twice:
        raise DataError(f"{what}: {twice[0]!r} is in the alphabet twice; give each character once")


def _codes(what: str, text: str, alphabet: str) -> NDArray[np.intp]:
    """The place of each character in the alphabet, (characters,)."""
    points, known = _points(text), _points(alphabet)  # (characters,), (alphabet,)
    order = np.argsort(known)
    places = order[np.minimum(np.searchsorted(known, points, sorter=order), len(known) - 1)]
    outside = known[places] != points
    if outside.any():
        where = int(np.argmax(outside))
        raise DataError(
            f"{what}: character {where} is {text[where]!r}, which is not in the alphabet of {len(alphabet)}; "
            f"take it out, or give an alphabet that has it"
        )
    return places


def _points(text: str) -> NDArray[np.uint32]:
    """The number Unicode gives to each character, (characters,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
