"""`compare`: several methods on the same data and seeds, each in its own run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from consilience.config.config import Config, make_config
from consilience.config.overrides import parse_method
from consilience.config.settings import Settings
from consilience.data import Dataset
from consilience.data.own_data import DataSource, to_dataset
from consilience.errors import CheckpointError, ConfigurationError
from consilience.methods import build_method
from consilience.presentation.gains import ALONE, add_gains
from consilience.presentation.message import message
from consilience.presentation.notebook import data_frame, flat_numbers, tables_html
from consilience.presentation.tables import table_text
from consilience.simulation.plots import FINISHED_BEFORE, plot_runs
from consilience.simulation.records.run_folder import RunFolder, read_plan, resume_command, save_plan
from consilience.simulation.records.run_lock import lock_folder, read_owner
from consilience.simulation.result import Result, summary_tables
from consilience.simulation.run import OnRound
from consilience.simulation.setup.inputs import load_data, resolve_config, select_samples
from consilience.simulation.setup.participants import Model
from consilience.simulation.simulate import check_run, simulate
from consilience.user_code import absolute_name, short_name

DEFAULT_METHODS = (
    "centralized",
    "independent",
    "self-distillation",
    "federated-distillation",
    "fedavg",
    "representation-sharing",
    "fedavg-1bit",
    "consilience",
)
"""The methods that are compared where none are named."""
OnSummary = Callable[[Mapping[str, Any]], None]
"""Called with the summary of each run when it ends."""
_KIND = "comparison"
_PLAN = f"{_KIND}.toml"


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison, in the order of its methods; fewer of them where it was stopped."""

    methods: tuple[str, ...]
    summaries: tuple[dict[str, Any], ...]
    results: Mapping[str, Result] = field(default_factory=dict)
    """By method, the results of the runs made now; runs that were finished before have only a summary."""
    folder: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether every method is finished."""
        done = [summary for summary in self.summaries if summary["finished"]]
        return len(done) == len(self.methods)

    def table(self) -> str:
        """One line for each method, as text, and what the numbers say in sentences."""
        return "\n".join([*map(table_text, summary_tables(self.summaries)), *self._sentences()])

    def _sentences(self) -> list[str]:
        said = message(self.summaries)
        return said.sentences if said else []

    def __repr__(self) -> str:
        means = ((s["method"], s["accuracy"]["mean"]) for s in self.summaries)
        found = ", ".join(f"{name} {'–' if mean is None else f'{mean:.1f} %'}" for name, mean in means)
        return f"Comparison({len(self.summaries)} of {len(self.methods)} methods: {found})"

    def _repr_html_(self) -> str:
        return tables_html(summary_tables(self.summaries), self._sentences())

    def to_pandas(self) -> Any:
        """The summaries as a pandas data frame, a row per method."""
        return data_frame([dict(flat_numbers(summary)) for summary in self.summaries])

    def plot(self, metric: str = "accuracy") -> Any:
        """A metric over rounds as an Altair chart, a line per method that was run now."""
        if not self.results:
            raise ConfigurationError(FINISHED_BEFORE)
        return plot_runs({short_name(name): result.history for name, result in self.results.items()}, metric)


def compare(
    config: Config | None = None,
    *,
    methods: Sequence[str] | None = None,
    data: DataSource | None = None,
    model: Model | Sequence[Model] | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    on_round: OnRound | None = None,
    on_summary: OnSummary | None = None,
    **settings: Unpack[Settings],
) -> Comparison:
    """Run several methods on the same data and seeds.

    methods: names, each with settings if you like: ["fedavg", "consilience:kd=3"]; by default `DEFAULT_METHODS`.
    data, model, settings: as in `simulate`. out: a folder to save all runs in. resume: the folder of a comparison to
    continue; finished runs are not run again. on_round: as in `simulate`. on_summary: called with each run's summary
    when it ends; where `independent`, with which its learners are compared, comes later, when that has ended.

        >>> comparison = compare(methods=["independent", "fedavg"], rounds=1, learners=2, train=40, test=20)
        >>> [summary["method"] for summary in comparison.summaries]
        ['independent', 'fedavg']
    """
    given = to_dataset(data)
    own = given if isinstance(given, Dataset) else None
    if resume is not None:
        if config is not None or settings or out is not None or methods is not None or isinstance(given, str):
            raise ConfigurationError("resume takes its settings from the comparison's folder; give it no others")
        plan = read_comparison(Path(resume))
    else:
        config = resolve_config(config, given, model, None, settings)
        names = DEFAULT_METHODS if methods is None else methods
        plan = plan_comparison(config, names, Path(out) if out is not None else None, own, model)
    summaries, results, reported = [], {}, 0
    with lock_folder(plan.folder) if plan.folder is not None else nullcontext():
        for name, found in plan.run(on_round, own, model):
            if isinstance(found, Result):
                results[name] = found
            summaries.append(found.summary() if isinstance(found, Result) else found)
            stopped = not summaries[-1]["finished"]
            if on_summary is not None and (stopped or not _learns_alone(plan.methods[len(summaries) :])):
                for summary in add_gains(summaries)[reported:]:
                    on_summary(summary)
                reported = len(summaries)
            if stopped:
                break
    return Comparison(plan.methods, tuple(add_gains(summaries)), results, plan.folder)


def _learns_alone(methods: Sequence[str]) -> bool:
    """Whether learning alone is among these methods."""
    return any(parse_method(method)["name"] == ALONE for method in methods)


@dataclass(frozen=True)
class ComparisonPlan:
    """The methods to compare, and the folder for their runs; finished runs are not run again."""

    config: Config
    methods: tuple[str, ...]
    folder: Path | None

    def run(
        self,
        on_round: OnRound | None = None,
        data: Dataset | None = None,
        model: Model | Sequence[Model] | None = None,
    ) -> Iterator[tuple[str, Result | dict[str, Any]]]:
        """Run what is not finished: each method in turn, with its result, or its summary if it was finished before."""
        result = None
        for name in self.methods:
            if result is not None:
                result.raise_if_interrupted()
            config = config_for_method(self.config, name)
            if self.folder is None:
                result = simulate(config, data=data, model=model, on_round=on_round)
                yield name, result
                continue
            folder = self.folder / _folder_name(name)
            done = RunFolder(folder).result
            if done is not None and done["finished"]:
                yield name, done
                continue
            if (folder / "config.toml").exists():
                result = simulate(resume=folder, data=data, model=model, on_round=on_round)
            else:
                result = simulate(config, data=data, model=model, out=folder, on_round=on_round)
            yield name, result


def config_for_method(config: Config, method: str) -> Config:
    """The configuration for one of the methods, given as NAME or NAME:KEY=VALUE:KEY=VALUE.

    The configuration's method settings, and its groups' too, apply only to the method it names. Groups keep those of
    their exchanges that the method has.
    """
    own, given = parse_method(method), config.settings()
    if config.method.name == own["name"]:
        return make_config(given | {"method": {**config.method.settings, **own}})
    settings = {key: value for key, value in own.items() if key != "name"}
    exchanges = {exchange.name for exchange in build_method(own["name"], settings).exchanges}
    for group in given["groups"].values():
        group.pop("method", None)
        for key in ("exchanges", "uploads", "downloads"):
            if isinstance(group.get(key), tuple):
                group[key] = [name for name in group[key] if name in exchanges]
    return make_config(given | {"method": own})


def _folder_name(method: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", short_name(method))


def plan_comparison(
    config: Config,
    methods: Sequence[str],
    folder: Path | None,
    data: Dataset | None = None,
    model: Model | Sequence[Model] | None = None,
) -> ComparisonPlan:
    """A new comparison; every method is set up first, so that what cannot work is refused before any run."""
    if not methods:
        raise ConfigurationError("no method to compare; name at least one")
    if folder is not None and (folder / _PLAN).exists() and run_folders(folder):
        raise ConfigurationError(f"{folder} already holds a comparison; resume it, or choose another folder")
    if folder is not None:
        config.check_savable()
    if config.variants:
        raise ConfigurationError("the configuration has variants, which belong to one method; sweep it instead")
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
    configs = [config_for_method(config, name) for name in names]
    for each in configs:  # a wrong name is refused before the data is read
        build_method(each.method.name, each.method.settings)
    dataset = load_data(config) if data is None else select_samples(data, config)
    for each in configs:
        check_run(each, dataset, model)
    if folder is not None:
        save_plan(folder, _KIND, {"methods": list(names), "config": config.settings()})
    return ComparisonPlan(config, names, folder)


def read_comparison(folder: Path) -> ComparisonPlan:
    """The comparison of a folder."""
    return read_plan(
        folder, _KIND, lambda plan: ComparisonPlan(make_config(plan["config"]), tuple(plan["methods"]), folder)
    )


def run_folders(folder: Path) -> list[RunFolder]:
    """The run in a folder, or the runs of a comparison."""
    if (folder / _PLAN).is_file():
        names = read_comparison(folder).methods
        runs = [RunFolder(folder / _folder_name(name)) for name in names]
        return [run for run in runs if (run.path / "config.toml").exists()]
    return [RunFolder.open(folder)]


def read_summaries(folder: Path) -> list[dict[str, Any]]:
    """The summaries of the run or the comparison in a folder; runs that have not ended have none."""
    runs = run_folders(folder)
    if not runs:
        owner = read_owner(folder)
        doing = f"{owner} is preparing the first" if owner else f"start it with: {resume_command(folder)}"
        raise CheckpointError(f"{folder} has no run yet; {doing}")
    return [run.result for run in runs if run.result is not None]
