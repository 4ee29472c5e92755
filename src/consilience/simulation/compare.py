"""`compare`: several methods on the same data and seeds, each in its own run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from consilience.config.config import Config, make_config
from consilience.config.overrides import parse_method
from consilience.config.settings import Settings
from consilience.data import Dataset
from consilience.data.own_data import DataSource, to_dataset
from consilience.errors import CheckpointError, ConfigurationError
from consilience.methods import build_method
from consilience.presentation.baseline import add_differences, differences_table
from consilience.presentation.gains import ALONE, BATCH_ORDER, CENTRALIZED, add_gains
from consilience.presentation.message import message
from consilience.presentation.notebook import data_frame, flat_numbers, tables_html
from consilience.presentation.tables import table_text
from consilience.simulation.planned_run import PlannedRun
from consilience.simulation.plots import FINISHED_BEFORE, plot_runs
from consilience.simulation.records.run_folder import (
    RunFolder,
    read_plan,
    refuse_file,
    resume_command,
    save_plan,
    used_folder_error,
)
from consilience.simulation.records.run_lock import lock_folder, read_owner
from consilience.simulation.result import Result, summary_tables
from consilience.simulation.run import OnRound
from consilience.simulation.run_all import run_all
from consilience.simulation.setup.inputs import load_data, resolve_config, select_samples
from consilience.simulation.setup.participants import Model
from consilience.simulation.simulate import check_run
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
    against: str | None = None
    """The baseline: the method that the others are compared with, `against` in their summaries."""

    @property
    def finished(self) -> bool:
        """Whether every method is finished."""
        done = [summary for summary in self.summaries if summary["finished"]]
        return len(done) == len(self.methods)

    def table(self) -> str:
        """One line for each method, as text, and what the numbers say in sentences."""
        return "\n".join([*map(table_text, self._tables()), *self._sentences()])

    def _tables(self) -> list[Any]:
        differences = differences_table(self.summaries)
        return [*summary_tables(self.summaries), *([] if differences is None else [differences])]

    def _sentences(self) -> list[str]:
        said = message(self.summaries)
        return said.sentences if said else []

    def __repr__(self) -> str:
        named = zip(map(short_name, self.methods), self.summaries, strict=False)
        means = ((name, s["accuracy"]["mean"]) for name, s in named)
        found = ", ".join(f"{name} {'–' if mean is None else f'{mean:.1f} %'}" for name, mean in means)
        return f"Comparison({len(self.summaries)} of {len(self.methods)} methods: {found})"

    def _repr_html_(self) -> str:
        return tables_html(self._tables(), self._sentences())

    def to_pandas(self) -> Any:
        """The summaries as a pandas data frame, a row per method."""
        return data_frame([dict(flat_numbers(summary)) for summary in self.summaries])

    def plot(self, metric: str = "accuracy") -> Any:
        """A metric over rounds as an Altair chart, a line per method that was run now, the control aside."""
        if not self.results:
            raise ConfigurationError(FINISHED_BEFORE)
        runs = {name: result for name, result in self.results.items() if not parse_method(name).get(BATCH_ORDER)}
        score = next(iter(runs.values())).metric
        return plot_runs({short_name(name): result.history for name, result in runs.items()}, metric, score)


def compare(
    config: Config | None = None,
    *,
    methods: Sequence[str] | None = None,
    against: str | None = None,
    control: bool = True,
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
    against: one of the methods, the baseline; the summaries of the others have `against`, the differences of `accuracy`
    and `accuracy_own` to it with the same seeds, and their 95 % intervals. control: beside `independent`, also run it
    with other batches, `independent:batch_order=1`: it shows how many learners differ from themselves by chance.
    data, model, settings: as in `simulate`. out: a folder to save all runs in. resume: the folder of a comparison to
    continue; finished runs are not run again. on_round: as in `simulate`. on_summary: called with each run's summary
    when it ends; where `independent` or the baseline, with which it is compared, comes later, when that has ended.

        >>> comparison = compare(methods=["fedavg", "independent"], rounds=1, learners=2, train=40, test=20)
        >>> comparison.methods
        ('fedavg', 'independent', 'independent:batch_order=1')
    """
    given = to_dataset(data)
    own = given if isinstance(given, Dataset) else None
    if resume is not None:
        others = (config, out, methods, against, settings or None, given if isinstance(given, str) else None)
        if any(other is not None for other in others):
            raise ConfigurationError("resume takes its settings from the comparison's folder; give it no others")
        plan = read_comparison(Path(resume))
    else:
        config = resolve_config(config, given, model, None, settings)
        names = DEFAULT_METHODS if methods is None else methods
        folder = Path(out) if out is not None else None
        plan = plan_comparison(config, names, folder, own, model, against=against, control=control)
    summaries: list[dict[str, Any]] = []
    results: dict[str, Result] = {}
    reported = 0

    def report() -> int:
        """Report the summaries that were not reported yet; how many are now."""
        for summary in plan.add_comparisons(summaries)[reported:]:
            if on_summary is not None:
                on_summary(summary)
        return len(summaries)

    with lock_folder(plan.folder) if plan.folder is not None else nullcontext():
        try:
            for name, found in plan.run(on_round, own, model):
                if isinstance(found, Result):
                    results[name] = found
                summaries.append(found.summary() if isinstance(found, Result) else found)
                if not summaries[-1]["finished"]:
                    break
                if not plan.compares_with(plan.methods[len(summaries) :]):
                    reported = report()
        finally:  # also where it is stopped between two methods
            report()
    return Comparison(plan.methods, tuple(plan.add_comparisons(summaries)), results, plan.folder, plan.against)


@dataclass(frozen=True)
class ComparisonPlan:
    """The methods to compare, and the folder for their runs; finished runs are not run again."""

    config: Config
    methods: tuple[str, ...]
    folder: Path | None
    against: str | None = None

    def compares_with(self, methods: Sequence[str]) -> bool:
        """Whether others are compared with one of these methods: learning alone, or the baseline."""
        return any(method == self.against or parse_method(method)["name"] == ALONE for method in methods)

    def add_comparisons(self, summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The summaries of the first methods, with their gains over learning alone and differences to the baseline."""
        baseline = None if self.against is None else self.methods.index(self.against)
        return add_differences(add_gains(summaries), baseline)

    def run(
        self,
        on_round: OnRound | None = None,
        data: Dataset | None = None,
        model: Model | Sequence[Model] | None = None,
    ) -> Iterator[tuple[str, Result | dict[str, Any]]]:
        """Run what is not finished: each method in turn, with its result, or its summary if it was finished before."""
        done = {name: self._finished(name) for name in self.methods}
        waiting = [self._planned(name, data, model) for name, summary in done.items() if summary is None]
        results = run_all(waiting, on_round)
        for name, summary in done.items():
            yield name, summary or next(results)

    def _folder_of(self, method: str) -> Path | None:
        return None if self.folder is None else self.folder / _folder_name(method)

    def _finished(self, method: str) -> dict[str, Any] | None:
        """The summary of a method's run if it is finished."""
        folder = self._folder_of(method)
        found = None if folder is None else RunFolder(folder).result
        return found if found is not None and found["finished"] else None

    def _planned(self, method: str, data: Dataset | None, model: Model | Sequence[Model] | None) -> PlannedRun:
        return PlannedRun(config_for_method(self.config, method), self._folder_of(method), data, model)


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
    *,
    against: str | None = None,
    control: bool = False,
) -> ComparisonPlan:
    """A new comparison; every method is set up first, so that what cannot work is refused before any run."""
    if not methods:
        raise ConfigurationError("no method to compare; name at least one")
    if folder is not None and (folder / _PLAN).exists() and run_folders(folder):
        raise used_folder_error(folder, "comparison")
    if folder is not None:
        refuse_file(folder)
        config.check_savable()
    if config.variants:
        raise ConfigurationError("the configuration has variants, which belong to one method; sweep it instead")
    names = tuple(dict.fromkeys(absolute_name(name) for name in methods))
    baseline = None if against is None else find_baseline(against, names)
    names = tuple(add_control(names)) if control else names
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
        compared = {"methods": list(names), **({} if baseline is None else {"against": baseline})}
        save_plan(folder, _KIND, {**compared, "config": config.settings()})
    return ComparisonPlan(config, names, folder, baseline)


def add_control(methods: Sequence[str]) -> list[str]:
    """The methods with the control after learning alone, if others are compared with that.

    >>> add_control(["independent", "fedavg"])
    ['independent', 'independent:batch_order=1', 'fedavg']
    """
    parsed = [parse_method(method) for method in methods]
    alone = [i for i, method in enumerate(parsed) if method["name"] == ALONE]
    others = any(method["name"] not in (ALONE, CENTRALIZED) for method in parsed)
    if not alone or not others or any(parsed[i].get(BATCH_ORDER) for i in alone):
        return list(methods)
    place = min(alone, key=lambda i: len(parsed[i]))  # as others are compared with it: the fewest settings
    return [*methods[: place + 1], f"{methods[place]}:{BATCH_ORDER}=1", *methods[place + 1 :]]


def find_baseline(against: str, methods: Sequence[str]) -> str:
    """The method that others are compared with, by its name, or by its name and settings; others are refused."""
    wanted, shown = absolute_name(against), ", ".join(map(short_name, methods))
    named = [method for method in methods if parse_method(method)["name"] == wanted]
    if wanted in methods or len(named) == 1:
        return wanted if wanted in methods else named[0]
    if named:
        several = ", ".join(map(short_name, named))
        raise ConfigurationError(
            f"against is {against!r}, and {len(named)} of the methods are: {several}; name one with its settings"
        )
    raise ConfigurationError(
        f"against is {against!r}, which is not among the methods that are compared: {shown}; name one of them, or add "
        f"it to the methods"
    )


def read_comparison(folder: Path) -> ComparisonPlan:
    """The comparison of a folder."""

    def make(plan: dict[str, Any]) -> ComparisonPlan:
        methods, against = tuple(plan["methods"]), plan.get("against")
        if against is not None and against not in methods:
            raise KeyError(f"against is {against!r}, which is not among its methods")
        return ComparisonPlan(make_config(plan["config"]), methods, folder, against)

    return read_plan(folder, _KIND, make)


def run_folders(folder: Path) -> list[RunFolder]:
    """The run in a folder, or the runs of a comparison."""
    if (folder / _PLAN).is_file():
        names = read_comparison(folder).methods
        runs = [RunFolder(folder / _folder_name(name)) for name in names]
        return [run for run in runs if (run.path / "config.toml").exists()]
    return [RunFolder.open(folder)]


def baseline_folder(folder: Path) -> Path | None:
    """The folder of the baseline's run; None if the folder is not a comparison, or one without a baseline."""
    against = read_comparison(folder).against if (folder / _PLAN).is_file() else None
    return None if against is None else folder / _folder_name(against)


def read_summaries(folder: Path) -> list[dict[str, Any]]:
    """The summaries of the run or the comparison in a folder; runs that have not ended have none."""
    runs = run_folders(folder)
    if not runs:
        owner = read_owner(folder)
        doing = f"{owner} is preparing the first" if owner else f"start it with: {resume_command(folder)}"
        raise CheckpointError(f"{folder} has no run yet; {doing}")
    return [run.result for run in runs if run.result is not None]


def compared_summaries(folder: Path, against: str | None = None) -> list[dict[str, Any]]:
    """The summaries in a folder with gains over learning alone and differences to the baseline.

    against: another baseline than the comparison's own.
    """
    found = read_summaries(folder)
    if not (folder / _PLAN).is_file():
        if against is not None:
            raise ConfigurationError(f"{folder} is not a comparison, so there is nothing to compare {against!r} with")
        return add_gains(found)
    plan = read_comparison(folder)
    if against is not None:
        plan = replace(plan, against=find_baseline(against, plan.methods))
    runs = [run.path.name for run in run_folders(folder) if run.result is not None]
    baseline = "" if plan.against is None else _folder_name(plan.against)
    return add_differences(add_gains(found), runs.index(baseline) if baseline in runs else None)
