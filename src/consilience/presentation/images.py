"""Grids of input images: as one picture, or in a terminal with half-block characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

from consilience.data import Dataset
from consilience.errors import ConfigurationError, DataError
from consilience.kinds import kind_of
from consilience.validation import check_integer

if TYPE_CHECKING:
    from PIL.Image import Image

GAP = 2
SMALLEST = 48
"""The smallest side of an image in a picture, in pixels."""
LARGEST_IN_TERMINAL = 28
"""The longest side of an image in a terminal, in pixels: a character is one pixel wide and two high."""


def grid_of(data: Dataset, per_class: int) -> NDArray[np.float32]:
    """The first `per_class` training images of each class, (classes * per_class, channels, height, width).

    The row of a class with fewer images ends with blanks: NaN, which are not drawn.
    """
    check_integer("per_class", per_class)
    if len(data.shape) != 3:
        raise DataError(
            f"data set {data.name!r}: inputs of the shape {data.shape} are not images (channels, height, width) "
            f"and cannot be drawn"
        )
    grid = np.full((data.groups, per_class, *data.shape), np.nan, dtype=np.float32)
    for label, row in enumerate(grid):
        there = kind_of(data.target).in_groups(data.target, data.targets, [label])
        mine = data.inputs[np.flatnonzero(there)[:per_class]]
        row[: len(mine)] = mine
    return grid.reshape(-1, *data.shape)


def picture_grid(images: NDArray[np.float32], *, columns: int, row_names: Sequence[str] | None = None) -> Image:
    """Scaled inputs (k, channels, height, width) as one picture: `columns` in a row, its name at the left."""
    from PIL import Image as pillow

    pixels, blank = _bytes(images), _blank(images)
    times = max(1, ceil(SMALLEST / min(pixels.shape[1:3])))
    pixels = pixels.repeat(times, axis=1).repeat(times, axis=2)  # (k, height, width, 3)
    pixels[blank] = 255
    canvas, _ = _canvas(pixels, blank, columns, GAP)
    picture = pillow.fromarray(canvas)
    return picture if row_names is None else _with_names(picture, row_names, pixels.shape[1] + GAP)


def in_terminal(images: NDArray[np.float32], columns: int) -> Text:
    """Scaled inputs (k, channels, height, width) as text in true color, two pixels per character."""
    pixels = _shrunk(_bytes(images))
    canvas, drawn = _canvas(pixels, _blank(images), columns, gap=1)
    if len(canvas) % 2:
        canvas, drawn = (np.concatenate([part, np.zeros_like(part[:1])]) for part in (canvas, drawn))
    text = Text(no_wrap=True, overflow="crop", end="")
    for top in range(0, len(canvas), 2):
        for (letter, style), run in groupby(_letters(canvas[top : top + 2], drawn[top : top + 2])):
            text.append(letter * len(list(run)), style)
        text.append("\n")
    return text


def _blank(images: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which places of a grid are blank, (k,): the images of NaN."""
    return np.isnan(images[:, 0, 0, 0])


def _bytes(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Red, green and blue bytes, (k, height, width, 3), scaled from the 1st to the 99th percentile of all values."""
    if images.ndim != 4 or 0 in images.shape or np.isnan(images).all():
        raise DataError(f"images must have the shape (k, channels, height, width) and not be empty, got {images.shape}")
    low, high = np.nanpercentile(images, (1, 99))
    if high <= low:  # nearly all background: use the whole range
        low, high = np.nanmin(images), max(np.nanmax(images), np.nanmin(images) + 1)
    shades = np.clip((np.nan_to_num(images) - low) / (high - low), 0, 1) * 255
    colors: NDArray[np.uint8] = np.moveaxis(np.rint(shades).astype(np.uint8), 1, -1)  # (k, height, width, channels)
    if colors.shape[-1] in (3, 4):
        return colors[..., :3]  # transparency is not drawn
    gray: NDArray[np.uint8] = colors.mean(axis=-1, keepdims=True).astype(np.uint8)  # (k, height, width, 1)
    return gray.repeat(3, axis=-1)


def _shrunk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (k, height, width, 3) small enough for a terminal."""
    height, width = pixels.shape[1:3]
    factor = LARGEST_IN_TERMINAL / max(height, width)
    if factor >= 1:
        return pixels
    from PIL import Image as pillow

    size = max(1, round(width * factor)), max(1, round(height * factor))
    return np.stack([np.asarray(pillow.fromarray(each).resize(size, pillow.Resampling.BOX)) for each in pixels])


def _canvas(
    pixels: NDArray[np.uint8], blank: NDArray[np.bool_], columns: int, gap: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """All images on one white canvas (height, width, 3), row by row, and a mask of the drawn pixels."""
    check_integer("columns", columns)
    count, height, width = pixels.shape[:3]
    rows, columns = ceil(count / columns), min(columns, count)
    canvas = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    drawn = np.zeros(canvas.shape[:2], dtype=np.bool_)
    for index in np.flatnonzero(~blank):
        row, column = divmod(int(index), columns)
        top, left = row * (height + gap), column * (width + gap)
        place = np.s_[top : top + height, left : left + width]
        canvas[place], drawn[place] = pixels[index], True
    return canvas, drawn


def _with_names(picture: Image, names: Sequence[str], pitch: int) -> Image:
    """The picture with the name of each row at its left, `pitch` pixels from one to the next."""
    from PIL import Image as pillow
    from PIL import ImageDraw, ImageFont

    rows = ceil(picture.height / pitch)
    if len(names) != rows:
        raise ConfigurationError(f"row_names must be {rows}, one for each row of the grid, got {len(names)}")
    font = ImageFont.load_default()
    # Pillow's default font has only Latin-1 letters.
    words = [name.encode("latin-1", "replace").decode("latin-1") for name in names]
    margin = ceil(max(font.getlength(word) for word in words)) + 4 * GAP
    wide = pillow.new("RGB", (margin + picture.width, picture.height), "white")
    wide.paste(picture, (margin, 0))
    draw = ImageDraw.Draw(wide)
    for row, word in enumerate(words):
        _, top, _, bottom = font.getbbox(word)
        middle = row * pitch + (pitch - GAP) / 2
        draw.text((2 * GAP, middle - (top + bottom) / 2), word, fill="black", font=font)
    return wide


def _letters(pair: NDArray[np.uint8], drawn: NDArray[np.bool_]) -> Iterator[tuple[str, Style]]:
    """One character for each column of two rows of pixels, (2, width, 3), of which those not drawn stay empty."""
    for (upper, lower), (above, below) in zip(pair.swapaxes(0, 1).tolist(), drawn.T.tolist(), strict=True):
        if above:
            yield "▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower) if below else None)
        else:
            yield ("▄", Style(color=Color.from_rgb(*lower))) if below else (" ", Style())
