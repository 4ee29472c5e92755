"""Several methods on the same data and seeds, each in a run folder of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.config.config import Config, make_config
from consilience.config.overrides import parse_method
from consilience.errors import CheckpointError, ConfigurationError
from consilience.methods import build_method
from consilience.simulation.records.run_folder import RunFolder, keep_plan, kind_of, read_plan
from consilience.simulation.setup.inputs import in_full, load_data
from consilience.simulation.simulate import OnRound, begin_or_go_on, rehearse
from consilience.user_code import absolute_name, short_name

_KIND = "comparison"
_PLAN = f"{_KIND}.toml"


@dataclass(frozen=True)
class Comparison:
    """A comparison and the folder it is kept in; finished methods are not run again."""

    config: Config
    methods: tuple[str, ...]
    folder: Path

    def play(self, on_round: OnRound | None = None) -> Iterator[dict[str, Any]]:
        """Run what is not finished; one summary for each method in turn."""
        result = None
        for name in self.methods:
            if result is not None:
                result.heed()
            folder = self.folder / _folder_name(name)
            done = RunFolder(folder).result
            if done is not None and done["finished"]:
                yield done
                continue
            result = begin_or_go_on(folder, configured(self.config, name), on_round)
            yield result.summary()


def configured(config: Config, method: str) -> Config:
    """The configuration for one of the methods, given as NAME or NAME:KEY=VALUE:KEY=VALUE.

    Settings of the configuration's own method, its groups' too, apply only where it is that one; of the exchanges that
    groups name, those the method has.
    """
    own, given = parse_method(method), config.settings()
    if config.method.name == own["name"]:
        return make_config(given | {"method": {**config.method.settings, **own}})
    settings = {key: value for key, value in own.items() if key != "name"}
    there = {exchange.name for exchange in build_method(own["name"], settings).exchanges}
    for group in given["groups"].values():
        group.pop("method", None)
        for key in ("exchanges", "uploads", "downloads"):
            if isinstance(group.get(key), tuple):
                group[key] = [name for name in group[key] if name in there]
    return make_config(given | {"method": own})


def _folder_name(method: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", short_name(method))


def begin(config: Config, methods: Sequence[str], folder: Path) -> Comparison:
    """A new comparison; every method is rehearsed first, so that what cannot work is told before the work."""
    if not methods:
        raise ConfigurationError("no method to compare; name at least one")
    if (folder / _PLAN).exists() and run_folders(folder):
        raise ConfigurationError(f"{folder} holds a comparison already; resume it, or choose another folder")
    if config.variants:
        raise ConfigurationError("the configuration has variants, which are one method's; sweep it, or leave them out")
    names = tuple(dict.fromkeys(absolute_name(name) for name in methods))
    if config.method.settings and config.method.name not in [parse_method(name)["name"] for name in names]:
        raise ConfigurationError(
            f"method.{next(iter(config.method.settings))} is set for method {config.method.name!r}, which is not "
            f"compared; say which it is for with --set method.name=NAME"
        )
    folders = [_folder_name(name) for name in names]
    for name in names:
        if folders.count(_folder_name(name)) > 1:
            raise ConfigurationError(
                f"two methods would have the folder {_folder_name(name)!r}; rename one of the files"
            )
    config = in_full(config)
    configs = [configured(config, name) for name in names]
    for each in configs:  # a wrong name before the data is read
        build_method(each.method.name, each.method.settings)
    data = load_data(config)
    for each in configs:
        rehearse(each, data)
    keep_plan(folder, _KIND, {"methods": list(names), "config": config.settings()})
    return Comparison(config, names, folder)


def reopen(folder: Path) -> Comparison:
    """A comparison begun before."""
    return read_plan(
        folder, _KIND, lambda plan: Comparison(make_config(plan["config"]), tuple(plan["methods"]), folder)
    )


def new_folder(config: Config, what: str) -> Path:
    """A folder under `runs/` that nobody has yet."""
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.data_name}-{_folder_name(what)}"
    tries = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 1000))]
    return next(path for path in tries if not path.exists())


def run_folders(folder: Path) -> list[RunFolder]:
    """The run in a folder, or the runs of a comparison."""
    if (folder / _PLAN).is_file():
        names = reopen(folder).methods
        runs = [RunFolder(folder / _folder_name(name)) for name in names]
        return [run for run in runs if (run.path / "config.toml").exists()]
    return [RunFolder.open(folder)]


def summaries_of(folder: Path) -> list[dict[str, Any]]:
    """What the runs in a folder came to, or how far they got; a run that broke off is refused by name."""
    found = []
    for run in run_folders(folder):
        if run.result is None:
            raise CheckpointError(f"{run.path} broke off; go on with: {how_to_resume(folder)}")
        found.append(run.result)
    if not found:
        raise CheckpointError(f"{folder} holds no run yet")
    return found


def how_to_resume(folder: Path) -> str:
    """The command that goes on with a run, a comparison or a sweep."""
    _, command = kind_of(folder) or ("run", "run")
    return f"consilience {command} --resume {folder}"
