"""Sequences of different lengths as arrays of one length, with a mask of what is real."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.to_numpy import to_numpy
from consilience.errors import DataError
from consilience.validation import check_integer

FIELDS = ("input_ids", "attention_mask")
"""The names of the two fields, unless others are given: those that transformers take."""
log = logging.getLogger("consilience")


def pad_sequences(
    sequences: Sequence[Any], length: int | None = None, pad: float = 0, *, names: tuple[str, str] = FIELDS
) -> dict[str, NDArray[Any]]:
    """Sequences as one array, (n, length, ...), and a mask, (n, length), True where a value is real.

    Shorter sequences are filled up with `pad` at their end, longer ones lose their end. length: by default that of the
    longest sequence; give test sequences that of the training sequences. names: of the two fields, as the model's
    forward has them. An entry of a sequence is a number of a token, an amount, or a vector of amounts.

        >>> fields = pad_sequences([[5, 3], [7]])
        >>> fields["input_ids"].tolist(), fields["attention_mask"].tolist()
        ([[5, 3], [7, 0]], [[True, True], [True, False]])
    """
    if length is not None:
        check_integer("length", length)
    if isinstance(sequences, str) or not len(sequences):
        raise DataError(f"sequences are {sequences!r:.60}; give a list with one list or array of numbers per sample")
    read = [_sequence(number, each) for number, each in enumerate(sequences)]
    _check_alike(read)
    longest = max(map(len, read)) if length is None else length
    kind = np.result_type(*{each.dtype for each in read})
    if kind.kind in "iu" and pad != int(pad):
        raise DataError(f"pad is {pad}, and the sequences hold whole numbers; pad with one, such as 0")
    values = np.full((len(read), longest, *read[0].shape[1:]), pad, dtype=kind)
    mask = np.zeros((len(read), longest), dtype=np.bool_)
    for row, each in enumerate(read):
        values[row, : len(each)], mask[row, : len(each)] = each[:longest], True
    if cut := sum(len(each) > longest for each in read):
        log.info("%d of %d sequences are longer than %d and lose their end", cut, len(read), longest)
    return dict(zip(names, (values, mask), strict=True))


def _sequence(number: int, thing: Any) -> NDArray[Any]:
    """One sequence as an array, (length, ...)."""
    if isinstance(thing, str):
        raise DataError(f"sequence {number} is text, {thing!r:.60}; number its tokens first, with a tokenizer")
    values = to_numpy(f"sequence {number}", thing)
    if values.ndim and not len(values):
        raise DataError(f"sequence {number} is empty; leave the sample out, or give it one token, such as [0]")
    if values.ndim not in (1, 2) or values.dtype.kind not in "iuf":
        raise DataError(
            f"sequence {number} must be numbers of the shape (length,) or (length, width), got {values.dtype} of the "
            f"shape {values.shape}; number its tokens first"
        )
    return values


def _check_alike(read: Sequence[NDArray[Any]]) -> None:
    """Refuse sequences whose entries have different shapes, or whole numbers among amounts."""
    for number, each in enumerate(read):
        if each.shape[1:] != read[0].shape[1:] or (each.dtype.kind == "f") != (read[0].dtype.kind == "f"):
            raise DataError(
                f"sequence {number} has entries of {each.dtype} of the shape {each.shape[1:]}, and sequence 0 of "
                f"{read[0].dtype} of the shape {read[0].shape[1:]}; give all one shape and type"
            )
