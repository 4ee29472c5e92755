"""One method under many settings, as few runs as can be: settings that differ only in weights run side by side."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from consilience.config import Config, make_config, parsed, place, setting_of
from consilience.errors import CheckpointError, ConfigurationError
from consilience.methods import build_method
from consilience.simulation.folder import RunFolder, replace_file, storing
from consilience.simulation.simulate import OnRound, simulate
from consilience.simulation.variants import shape_of

PLAN = "sweep.toml"
TIDY = "sweep.csv"
_ROW = ("accuracy", "accuracy_local", "bytes.up", "bytes.down")

Grid = Mapping[str, Sequence[Any]]
"""The settings swept over, and the values of each."""


def axes(texts: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """`KEY=A,B,...` as the axes of a sweep; what has a single value is left as it was, to be set for all."""
    grid: dict[str, list[Any]] = {}
    fixed: list[str] = []
    for text in texts:
        key, value = setting_of(text)
        values = _values(value)
        if len(values) < 2:
            fixed.append(text)
        elif key in grid:
            raise ConfigurationError(f"{key} is swept over twice; give all its values at once")
        else:
            grid[key] = values
    return grid, fixed


def _values(text: str) -> list[Any]:
    try:  # TOML knows which commas are inside a word
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [parsed(part.strip()) for part in text.split(",") if part.strip()]


@dataclass(frozen=True)
class Sweep:
    """A sweep and the folder it is kept in; finished parts are not run again."""

    config: Config
    grid: Grid
    folder: Path

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination, the last axis changing fastest."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    @property
    def parts(self) -> list[list[int]]:
        """Numbers of the settings that can run side by side."""
        alike: dict[str, list[int]] = {}
        for number, changes in enumerate(self.settings):
            own = self._configured(changes)
            alike.setdefault(shape_of(own, build_method(own.method.name, own.method.settings)), []).append(number)
        return list(alike.values())

    @property
    def apart(self) -> list[str]:
        """The swept settings that cannot differ within a run."""
        parts, settings = self.parts, self.settings
        return [
            key
            for key in self.grid
            if any(len({repr(settings[n][key]) for n in p}) < len(self.grid[key]) for p in parts)
        ]

    def _configured(self, changes: Mapping[str, Any]) -> Config:
        given = self.config.model_dump(exclude_none=True)
        for key, value in changes.items():
            place(given, key, value)
        return make_config(given)

    def _folders(self) -> list[tuple[RunFolder, list[int]]]:
        return [(RunFolder(self.folder / f"part-{i}"), part) for i, part in enumerate(self.parts, start=1)]

    def play(self, on_round: OnRound | None = None) -> Iterator[bool]:
        """Run what is not finished, part by part; whether each came to its end. Then the tidy file is there."""
        for run, part in self._folders():
            finished = bool(run.result and run.result["finished"])
            if not finished and (run.path / "config.toml").exists():
                finished = simulate(resume=run.path, on_round=on_round).finished
            elif not finished:
                settings = self.settings
                first = self._configured(settings[part[0]])
                config = first.model_copy(update={"variants": tuple(settings[n] for n in part)})
                finished = simulate(config, out=run.path, on_round=on_round).finished
            self._tidy()
            yield finished

    def outcomes(self) -> list[dict[str, Any]]:
        """What the finished settings came to, one summary for each in the order of the settings."""
        found: dict[int, dict[str, Any]] = {}
        for run, part in self._folders():
            for number, summary in zip(part, (run.result or {}).get("variants", ()), strict=False):
                found[number] = summary
        return [found[number] for number in sorted(found)]

    def _tidy(self) -> None:
        """One line for each setting, seed and round: means over learners, as a table for other programs."""
        lines: list[dict[str, Any]] = []
        for run, part in self._folders():
            if run.metrics.exists():
                lines += self._lines(run, part)
        names = list(dict.fromkeys(key for line in lines for key in line))
        stream = io.StringIO()
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        with storing(self.folder / TIDY):
            replace_file(self.folder / TIDY, stream.getvalue().encode())

    def _lines(self, run: RunFolder, part: Sequence[int]) -> Iterator[dict[str, Any]]:
        groups: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
        try:
            for text in run.lines():
                line = json.loads(text)
                groups.setdefault((line["variant"], line["seed"], line["round"]), []).append(line)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{run.metrics} is damaged: {error}") from error
        for (variant, seed, round_), learners in sorted(groups.items()):
            if round_:
                losses = [f"loss.{term}" for term in learners[0]["loss"]]
                means = {name: _mean(learners, name) for name in (*_ROW, *losses)}
                spread = {"accuracy_std_learners": _spread(learners)}
                yield {**self.settings[part[variant]], "seed": seed, "round": round_, **means, **spread}


def _column(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    *folders, last = name.split(".")
    values = [(line[folders[0]] if folders else line)[last] for line in lines]
    return [value for value in values if value is not None]


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = _column(lines, name)
    return float(np.mean(values)) if values else None


def _spread(lines: Sequence[Mapping[str, Any]]) -> float | None:
    values = _column(lines, "accuracy")
    return float(np.std(values)) if values else None


def best_of(outcomes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The setting with the highest mean accuracy, of those that stayed sound."""
    sound = [s for s in outcomes if not s["diverged"] and s["accuracy"]["mean"] is not None]
    return max(sound, key=lambda s: float(s["accuracy"]["mean"]), default=None)


def begin(config: Config, grid: Grid, folder: Path) -> Sweep:
    """A new sweep; every setting is tried on first, so that a wrong one is told before the work."""
    if not grid:
        raise ConfigurationError("nothing to sweep over; give a setting several values, such as --set method.kd=0,1,10")
    if (folder / PLAN).exists():
        raise ConfigurationError(f"{folder} holds a sweep already; resume it, or choose another folder")
    if config.variants:
        raise ConfigurationError("the configuration has variants already; sweep over one that has none")
    sweep = Sweep(config, grid, folder)
    assert sweep.parts  # builds every setting
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        plan = {"grid": {k: list(v) for k, v in grid.items()}, "config": config.model_dump(exclude_none=True)}
        replace_file(folder / PLAN, tomli_w.dumps(plan).encode())
    return sweep


def reopen(folder: Path) -> Sweep:
    """A sweep begun before."""
    plan = folder / PLAN
    if not plan.is_file():
        raise ConfigurationError(f"{folder} is no sweep: it has no {PLAN}")
    try:
        content = tomllib.loads(plan.read_text(encoding="utf-8"))
        return Sweep(make_config(content["config"]), content["grid"], folder)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{plan} is damaged: {error}") from error
