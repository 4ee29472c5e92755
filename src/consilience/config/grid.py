"""The grid of a sweep: settings, and the values of each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from consilience.config.overrides import parse_value, split_list, split_setting
from consilience.errors import ConfigurationError

Grid = Mapping[str, Sequence[Any]]
"""The settings swept over, and the values of each."""


def parse_grid(texts: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """`KEY=A,B,...` as the grid of a sweep; texts with a single value are returned as they are."""
    grid: dict[str, list[Any]] = {}
    fixed: list[str] = []
    for text in texts:
        key, value = split_setting(text)
        values = _values(value)
        if len(values) < 2:
            fixed.append(text)
        elif key in grid:
            raise ConfigurationError(f"{key} is swept over twice; give all its values at once")
        else:
            grid[key] = values
    for key in (split_setting(text)[0] for text in fixed):
        if key in grid:
            raise ConfigurationError(f"{key} is swept over and set as well; give all its values at once")
    return check_grid(grid), fixed


def check_grid(grid: Grid) -> dict[str, list[Any]]:
    """The grid with each value once; refuses seeds, and a setting with only one value."""
    found = {key: list({repr(value): value for value in values}.values()) for key, values in grid.items()}
    for key, values in found.items():
        if len(values) < 2:
            raise ConfigurationError(f"{key} has only one value; give at least two different values to choose between")
        if key in ("seed", "seeds"):
            raise ConfigurationError(f"{key} is not a setting to choose between; run several seeds with --seeds")
    return found


def _values(text: str) -> list[Any]:
    try:  # TOML knows which commas are inside a string
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [parse_value(part) for part in split_list(text)]
