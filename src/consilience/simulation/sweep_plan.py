"""The runs of a sweep: settings that differ only in weights and rates share a run, as federations of one stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from consilience.config.config import Config, make_config
from consilience.config.grid import Grid
from consilience.config.overrides import set_nested
from consilience.errors import CheckpointError
from consilience.methods import build_method
from consilience.presentation.ranking import add_ranks
from consilience.simulation.records.run_folder import RunFolder, read_plan, refuse_used_folder, save_plan
from consilience.simulation.records.sweep_csv import sweep_lines, write_sweep_csv
from consilience.simulation.setup.variants import shared_run_key

_KIND = "sweep"
SWEEP_PLAN = f"{_KIND}.toml"


@dataclass(frozen=True)
class SweepPlan:
    """Every combination of a grid's values, in as few runs as possible."""

    config: Config
    grid: Grid
    folder: Path | None = None

    @cached_property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination; the last key of the grid changes fastest."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    @cached_property
    def parts(self) -> list[list[int]]:
        """Numbers of the settings that share a run."""
        alike: dict[str, list[int]] = {}
        for number, changes in enumerate(self.settings):
            own = self._config_with(changes)
            alike.setdefault(shared_run_key(own, build_method(own.method.name, own.method.settings)), []).append(number)
        return list(alike.values())

    @property
    def separating(self) -> list[str]:
        """The swept settings that cannot differ within a run."""
        within = [{key: self._different(key, part) for key in self.grid} for part in self.parts]
        every = range(len(self.settings))
        return [key for key in self.grid if any(counts[key] < self._different(key, every) for counts in within)]

    def _different(self, key: str, numbers: Sequence[int]) -> int:
        return len({repr(self.settings[n][key]) for n in numbers})

    def _config_with(self, changes: Mapping[str, Any]) -> Config:
        settings = self.config.settings()
        for key, value in changes.items():
            set_nested(settings, key, value)
        return make_config(settings)

    def configs(self) -> list[Config]:
        """The configuration of each run: the settings of its first variant, and all its variants."""
        return [
            self._config_with(self.settings[part[0]]).replace(variants=tuple(self.settings[n] for n in part))
            for part in self.parts
        ]

    def runs(self) -> Iterator[tuple[RunFolder, list[int], Config]]:
        """The folder, the settings and the configuration of each run; a folder of other settings is refused."""
        assert self.folder is not None
        for i, (part, config) in enumerate(zip(self.parts, self.configs(), strict=True), start=1):
            run = RunFolder(self.folder / f"part-{i}")
            if (run.path / "config.toml").exists() and run.config.variants != config.variants:
                raise CheckpointError(f"{run.path} has other settings than {self.folder / SWEEP_PLAN} names now")
            yield run, part, config

    def summaries(self) -> list[dict[str, Any]]:
        """The summaries of the settings whose runs are finished, with their ranks, in the order of the settings."""
        found: dict[int, dict[str, Any]] = {}
        for run, part, _ in self.runs():
            if is_finished(run) and run.result is not None:
                found |= dict(zip(part, run.result["variants"], strict=True))
        return add_ranks([found[number] for number in sorted(found)])

    def write_csv(self) -> None:
        """Write `sweep.csv` with the settings whose runs are finished."""
        assert self.folder is not None
        done = [(run, part) for run, part, _ in self.runs() if is_finished(run)]
        lines = [line for run, part in done for line in sweep_lines(run, [self.settings[n] for n in part])]
        ranks = {repr(s["set"]): {key: s[key] for key in ("rank", "ranked_by")} for s in self.summaries()}
        write_sweep_csv(self.folder, [line | ranks[repr({key: line[key] for key in self.grid})] for line in lines])


def is_finished(run: RunFolder) -> bool:
    """Whether a run has a result, and is finished."""
    return run.result is not None and bool(run.result["finished"])


def save_sweep(plan: SweepPlan) -> None:
    """Save the plan in its folder, which must not hold anything yet."""
    assert plan.folder is not None
    refuse_used_folder(plan.folder)
    grid = {key: list(values) for key, values in plan.grid.items()}
    save_plan(plan.folder, _KIND, {"grid": grid, "config": plan.config.settings()})


def read_sweep(folder: Path) -> SweepPlan:
    """The sweep of a folder."""

    def make(plan: dict[str, Any]) -> SweepPlan:
        grid = plan["grid"]
        if not isinstance(grid, dict) or not all(isinstance(values, list) for values in grid.values()):
            raise TypeError("its grid must have lists of values")
        return SweepPlan(make_config(plan["config"]), grid, folder)

    return read_plan(folder, _KIND, make)
