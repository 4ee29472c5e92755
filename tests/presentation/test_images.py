"""Pictures of inputs on the canvas and in the terminal, checked pixel by pixel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.style import Style

from consilience.data import Dataset, load
from consilience.errors import ConfigurationError, DataError
from consilience.presentation.images import GAP, grid_of, in_terminal, picture_grid


def flat(*values: float, channels: int = 1, side: int = 2) -> np.ndarray:
    """Images of one value each, (k, channels, side, side)."""
    one = np.array(values, dtype=np.float32)[:, None, None, None]
    return np.broadcast_to(one, (len(values), channels, side, side)).copy()


def own(inputs: np.ndarray, targets: list[int], classes: int = 2) -> Dataset:
    return Dataset("mine", inputs, np.array(targets), inputs[:1], np.array(targets[:1]), classes)


def test_grid_has_a_row_for_each_class() -> None:
    grid = grid_of(own(flat(0, 1, 2, 3, 4), [1, 0, 1, 1, 0]), per_class=2)
    assert grid.shape == (4, 1, 2, 2) and grid.dtype == np.float32
    assert grid[:, 0, 0, 0].tolist() == [1, 4, 0, 2]


def test_short_grid_row_is_filled_with_blanks() -> None:
    grid = grid_of(own(flat(5, 6), [1, 1], classes=3), per_class=3)
    assert np.isnan(grid[[0, 1, 2, 5, 6, 7, 8]]).all() and grid[3:5, 0, 0, 0].tolist() == [5, 6]
    picture = np.asarray(picture_grid(grid, columns=3))
    assert (picture[:48] == 255).all() and picture[50, 0].tolist() == [0, 0, 0]


def test_table_cannot_be_drawn() -> None:
    table = replace(
        own(flat(0, 1), [0, 1]), inputs=np.eye(2, dtype=np.float32), test_inputs=np.eye(2, dtype=np.float32)[:1]
    )
    with pytest.raises(DataError, match=r"'mine': inputs of the shape \(2,\) are not images"):
        grid_of(table, 1)
    with pytest.raises(ConfigurationError, match="per_class is 0"):
        grid_of(own(flat(0, 1), [0, 1]), 0)


def test_small_images_are_enlarged_and_separated() -> None:
    images = flat(0, 1, 0)
    images[0, 0, 0, 1] = 1  # the upper right corner of the first
    picture = np.asarray(picture_grid(images, columns=2))
    assert picture.shape == (48 + GAP + 48, 48 + GAP + 48, 3) and picture.dtype == np.uint8
    assert (picture[:24, 24:48] == 255).all() and (picture[:24, :24] == 0).all() and (picture[24:48, :48] == 0).all()
    assert (picture[:, 48 : 48 + GAP] == 255).all() and (picture[:48, 50:] == 255).all()
    assert (picture[50:, :48] == 0).all() and (picture[50:, 50:] == 255).all()  # the last cell is empty


def test_large_images_keep_size_and_aspect_ratio() -> None:
    assert picture_grid(flat(0, 1, side=60), columns=2).size == (122, 60)
    assert picture_grid(np.zeros((1, 1, 10, 30), dtype=np.float32), columns=5).size == (150, 50)


def test_colors_are_drawn_unchanged() -> None:
    images = np.zeros((1, 4, 2, 2), dtype=np.float32)
    images[0, 0], images[0, 3] = 1, 0.5
    for channels in (3, 4):
        assert np.asarray(picture_grid(images[:, :channels], columns=1))[0, 0].tolist() == [255, 0, 0]
    assert np.asarray(picture_grid(images[:, :2], columns=1))[0, 0].tolist() == [
        127,
        127,
        127,
    ]  # no colors: their mean


def test_gray_values_are_stretched_without_outliers() -> None:
    images = np.linspace(0, 1, 1000, dtype=np.float32).reshape(1, 1, 10, 100)
    images[0, 0, 0, 0], images[0, 0, 9, 99] = -50, 50  # an outlier; without clipping all others would be one gray
    picture = np.asarray(picture_grid(images, columns=1))[:, :, 0]
    assert picture[0, 0] == 0 and picture[-1, -1] == 255
    assert 125 <= np.median(picture) <= 130
    thin = np.zeros((1, 1, 20, 20), dtype=np.float32)
    thin[0, 0, 3, 3] = 2  # less than a hundredth of it is not background
    assert np.asarray(picture_grid(thin, columns=1)).max() == 255
    assert np.asarray(picture_grid(flat(7), columns=1)).max() == 0  # one gray value only


def test_rows_have_their_labels_at_the_left() -> None:
    plain = picture_grid(flat(0, 1), columns=1)
    named = picture_grid(flat(0, 1), columns=1, row_names=["one", "дом"])
    margin = named.width - plain.width
    assert margin > 10 and named.height == plain.height
    pixels = np.asarray(named)
    assert np.array_equal(pixels[:, margin:], np.asarray(plain))
    dark = np.argwhere(pixels[:48, :margin].min(axis=2) < 128)
    assert len(dark) > 5 and 15 < dark[:, 0].mean() < 33  # letters, at the middle of the row
    assert (pixels[50:, :margin] < 128).any()
    with pytest.raises(ConfigurationError, match="row_names must be 2, one for each row of the grid, got 1"):
        picture_grid(flat(0, 1), columns=1, row_names=["one"])


def styles(images: np.ndarray, columns: int) -> list[list[tuple[str, str]]]:
    """Every character drawn, with its colors, line by line."""
    text = in_terminal(images, columns)
    lines = text.plain.splitlines()
    at, found = 0, []
    for line in lines:
        row = []
        for letter in line:
            (span,) = (s for s in text.spans if s.start <= at < s.end) if letter != " " else (None,)
            row.append((letter, str(span.style) if span is not None else ""))
            at += 1
        at += 1  # the end of the line
        found.append(row)
    return found


def test_terminal_character_shows_two_pixels() -> None:
    images = flat(0, 1)
    images[1, 0, 0, 0] = 0
    (line,) = styles(images, 2)
    assert line == [
        ("▀", "#000000 on #000000"),
        ("▀", "#000000 on #000000"),
        (" ", ""),
        ("▀", "#000000 on #ffffff"),
        ("▀", "#ffffff on #ffffff"),
    ]


def test_odd_rows_and_gaps_keep_the_terminal_background() -> None:
    images = flat(0, 1, side=1)
    assert styles(images, 1) == [[("▀", "#000000")], [("▀", "#ffffff")]]  # image, gap; image, nothing
    tall = np.array([0, 0, 0, 1, 1, 1], dtype=np.float32).reshape(2, 1, 3, 1)
    letters = ["".join(letter for letter, _ in line) for line in styles(tall, 1)]
    assert letters == ["▀", "▀", "▀", "▀"]
    even = np.array([0, 0, 1, 1], dtype=np.float32).reshape(2, 1, 2, 1)
    assert styles(even, 1) == [[("▀", "#000000 on #000000")], [("▄", "#ffffff")], [("▀", "#ffffff")]]


def test_large_images_are_shrunk_for_the_terminal() -> None:
    text = in_terminal(np.random.RandomState(0).rand(2, 3, 56, 112).astype(np.float32), 2)
    lines = text.plain.splitlines()
    assert len(lines) == 7 and {len(line) for line in lines} == {28 + 1 + 28}
    assert isinstance(text.spans[0].style, Style)


def test_blank_cells_are_empty_in_the_terminal() -> None:
    images = flat(0, np.nan, 1)
    assert [letter for letter, _ in styles(images, 3)[0]] == ["▀", "▀", " ", " ", " ", " ", "▀", "▀"]


@pytest.mark.parametrize("images", [np.zeros((2, 3)), np.zeros((0, 1, 2, 2)), np.full((1, 1, 2, 2), np.nan)])
def test_arrays_that_are_not_images_are_refused(images: np.ndarray) -> None:
    with pytest.raises(DataError, match="images must have the shape"):
        picture_grid(images.astype(np.float32), columns=1)
    with pytest.raises(DataError, match="images must have the shape"):
        in_terminal(images.astype(np.float32), 1)


@pytest.mark.parametrize("columns", [0, -1, True])
def test_number_of_columns_is_validated(columns: int) -> None:
    with pytest.raises(ConfigurationError, match="columns"):
        picture_grid(flat(0, 1), columns=columns)


def test_drawn_digits_have_the_expected_brightness() -> None:
    digits = load("digits", train=20, test=1)
    picture = np.asarray(picture_grid(grid_of(digits, 2), columns=2))[:, :, 0]
    zero = picture[:48, :48].reshape(8, 6, 8, 6)[:, 0, :, 0]  # the first 0: dark in the middle, bright around it
    assert zero[3:5, 3:5].mean() < 60 and zero[1, 2:6].mean() > 120
