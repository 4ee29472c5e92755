"""One method under many settings, as few runs as can be: settings that differ only in weights run side by side."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from consilience.config.config import Config, make_config
from consilience.config.overrides import parse_value, set_nested, split_list, split_setting
from consilience.errors import CheckpointError, ConfigurationError
from consilience.files import replace_file, report_write_errors
from consilience.methods import build_method
from consilience.simulation.records.run_folder import RunFolder, keep_plan, read_plan, refuse_taken
from consilience.simulation.setup.variants import shape_of
from consilience.simulation.simulate import OnRound, begin_or_go_on, rehearse

_KIND = "sweep"
PLAN = f"{_KIND}.toml"
TIDY = "sweep.csv"
_ROW = ("accuracy", "accuracy_local", "bytes.up", "bytes.down")
_LEFT = ("accuracy_before", "accuracy_train")

Grid = Mapping[str, Sequence[Any]]
"""The settings swept over, and the values of each."""


def axes(texts: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """`KEY=A,B,...` as the axes of a sweep; what has a single value is left as it was, to be set for all."""
    grid: dict[str, list[Any]] = {}
    fixed: list[str] = []
    for text in texts:
        key, value = split_setting(text)
        given = _values(value)
        values = list({repr(value): value for value in given}.values())  # each once
        if len(given) < 2:
            fixed.append(text)
        elif len(values) < 2:
            raise ConfigurationError(f"{key} is given one value again and again; there is nothing to choose between")
        elif key in grid:
            raise ConfigurationError(f"{key} is swept over twice; give all its values at once")
        elif key in ("seed", "seeds"):
            raise ConfigurationError(f"{key} is no setting to choose between; run several seeds with --seeds")
        else:
            grid[key] = values
    for key in (split_setting(text)[0] for text in fixed):
        if key in grid:
            raise ConfigurationError(f"{key} is swept over and set as well; give all its values at once")
    return grid, fixed


def _values(text: str) -> list[Any]:
    try:  # TOML knows which commas are inside a word
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [parse_value(part) for part in split_list(text)]


@dataclass(frozen=True)
class Sweep:
    """A sweep and the folder it is kept in; finished parts are not run again."""

    config: Config
    grid: Grid
    folder: Path

    @cached_property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination, the last axis changing fastest."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    @cached_property
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
        within = [{key: self._different(key, part) for key in self.grid} for part in self.parts]
        every = range(len(self.settings))
        return [key for key in self.grid if any(counts[key] < self._different(key, every) for counts in within)]

    def _different(self, key: str, numbers: Sequence[int]) -> int:
        return len({repr(self.settings[n][key]) for n in numbers})

    def _configured(self, changes: Mapping[str, Any]) -> Config:
        given = self.config.settings()
        for key, value in changes.items():
            set_nested(given, key, value)
        return make_config(given)

    def configs(self) -> list[Config]:
        """What each part runs: the settings of its first, and in what the others differ."""
        return [
            self._configured(self.settings[part[0]]).replace(variants=tuple(self.settings[n] for n in part))
            for part in self.parts
        ]

    def _runs(self) -> Iterator[tuple[RunFolder, list[int], Config]]:
        """The folder, the settings and the configuration of each part; a folder of other settings is refused."""
        for i, (part, config) in enumerate(zip(self.parts, self.configs(), strict=True), start=1):
            run = RunFolder(self.folder / f"part-{i}")
            if (run.path / "config.toml").exists() and run.config.variants != config.variants:
                raise CheckpointError(f"{run.path} is of other settings than {self.folder / PLAN} names now")
            yield run, part, config

    def play(self, on_round: OnRound | None = None) -> Iterator[bool]:
        """Run what is not finished, part by part; whether each came to its end. Then the tidy file is there."""
        result = None
        for run, _, config in self._runs():
            if result is not None:
                result.heed()
            if _finished(run):
                yield True
                continue
            result = begin_or_go_on(run.path, config, on_round)
            if not result.finished:
                self._tidy()
            yield result.finished
        self._tidy()

    @property
    def finished(self) -> bool:
        """Whether every part has come to its end."""
        return all(_finished(run) for run, _, _ in self._runs())

    def outcomes(self) -> list[dict[str, Any]]:
        """What the settings of finished parts came to, one summary for each in the order of the settings."""
        found: dict[int, dict[str, Any]] = {}
        for run, part, _ in self._runs():
            if _finished(run) and run.result is not None:
                found |= dict(zip(part, run.result["variants"], strict=True))
        return [found[number] for number in sorted(found)]

    def _tidy(self) -> None:
        """One line for each setting, seed and round: means over learners, as a table for other programs."""
        lines = [line for run, part, _ in self._runs() if _finished(run) for line in self._lines(run, part)]
        names = list(dict.fromkeys(key for line in lines for key in line))
        stream = io.StringIO()
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        with report_write_errors(self.folder / TIDY):
            replace_file(self.folder / TIDY, stream.getvalue().encode())

    def _lines(self, run: RunFolder, part: Sequence[int]) -> list[dict[str, Any]]:
        groups: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
        try:
            for text in run.lines():
                line = json.loads(text)
                groups.setdefault((line.get("variant", 0), line["seed"], line["round"]), []).append(line)
            found = [self._line(part[v], seed, r, learners) for (v, seed, r), learners in sorted(groups.items()) if r]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{run.metrics} is damaged: {error}") from error
        wanted = len(part) * run.config.federation.seeds * run.config.training.rounds
        if len(found) != wanted:
            raise CheckpointError(
                f"{run.metrics} is damaged: {len(found)} settings, seeds and rounds, expected {wanted}"
            )
        return found

    def _line(self, setting: int, seed: int, round_: int, learners: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        losses = [f"loss.{term}" for term in learners[0]["loss"]]
        asked = [key for key in learners[0] if key.startswith(("accuracy_", "dependence")) and key not in _ROW + _LEFT]
        means = {name: _mean(learners, name) for name in (*_ROW, *asked, *losses)}
        return {
            **self.settings[setting],
            "seed": seed,
            "round": round_,
            **means,
            "accuracy_std_learners": _spread(learners),
        }


def _finished(run: RunFolder) -> bool:
    return run.result is not None and bool(run.result["finished"])


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


def begin(config: Config, grid: Grid, folder: Path) -> Sweep:
    """A new sweep; every setting is tried on first, so that a wrong one is told before the work."""
    if not grid:
        raise ConfigurationError("nothing to sweep over; give a setting several values, such as --set method.kd=0,1,10")
    refuse_taken(folder)
    if config.variants:
        raise ConfigurationError("the configuration has variants already; sweep over one that has none")
    sweep = Sweep(config, grid, folder)
    for each in sweep.configs():
        rehearse(each)
    plain = {key: list(values) for key, values in grid.items()}
    keep_plan(folder, _KIND, {"grid": plain, "config": config.settings()})
    return sweep


def reopen(folder: Path) -> Sweep:
    """A sweep begun before."""

    def made(plan: dict[str, Any]) -> Sweep:
        grid = plan["grid"]
        if not isinstance(grid, dict) or not all(isinstance(values, list) for values in grid.values()):
            raise TypeError("its grid names no lists of values")
        return Sweep(make_config(plan["config"]), grid, folder)

    return read_plan(folder, _KIND, made)
