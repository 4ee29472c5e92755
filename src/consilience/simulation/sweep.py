"""`sweep`: one method under every combination of some settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Unpack

from consilience.config.config import Config
from consilience.config.grid import Grid, check_grid
from consilience.config.settings import Settings
from consilience.data import Dataset
from consilience.data.own_data import DataSource, to_dataset
from consilience.errors import ConfigurationError
from consilience.presentation.notebook import data_frame, flat_numbers, tables_html
from consilience.presentation.ranking import add_ranks, ranked_by
from consilience.presentation.tables import sweep_table, table_text
from consilience.simulation.planned_run import PlannedRun
from consilience.simulation.plots import FINISHED_BEFORE, plot_runs
from consilience.simulation.records.run_folder import refuse_used_folder
from consilience.simulation.records.run_lock import lock_folder
from consilience.simulation.result import Result, best_of, histories_of
from consilience.simulation.run import OnRound
from consilience.simulation.run_all import run_all
from consilience.simulation.setup.inputs import resolve_config, select_samples
from consilience.simulation.setup.participants import Model
from consilience.simulation.simulate import check_run
from consilience.simulation.sweep_plan import SweepPlan, is_finished, read_sweep, save_sweep

log = logging.getLogger("consilience")


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep: one summary for each combination of settings that is finished."""

    settings: tuple[dict[str, Any], ...]
    """Every combination of settings."""
    rows: tuple[dict[str, Any], ...]
    """The summaries of finished settings, in that order; row["set"] has the settings, row["rank"] their rank from 1 by
    the metric row["ranked_by"]."""
    folder: Path | None = None
    results: tuple[Result, ...] = ()
    """The results of the runs made now, each with one variant or more."""

    @property
    def finished(self) -> bool:
        """Whether every setting is finished."""
        return len(self.rows) == len(self.settings)

    @property
    def best(self) -> dict[str, Any] | None:
        """The row that ranks first, of those that did not diverge: by `ranked_by`."""
        return best_of(self.rows)

    @property
    def ranked_by(self) -> str:
        """The metric that ranks the rows: `accuracy_validation` if all have it, else `ensemble`, else `accuracy`."""
        return ranked_by(self.rows)

    def table(self) -> str:
        """One line for each setting, as text."""
        return table_text(sweep_table(self.rows))

    def __repr__(self) -> str:
        best = self.best
        metric = ranked_by(self.rows)
        found = "" if best is None else f", best {best['set']} with {best[metric]['mean']:.1f} % {metric}"
        return f"Sweep({len(self.rows)} of {len(self.settings)} settings finished{found})"

    def _repr_html_(self) -> str:
        return tables_html([sweep_table(self.rows)]) if self.rows else f"<p>{escape(repr(self))}</p>"

    def plot(self, metric: str = "accuracy") -> Any:
        """A metric over rounds as an Altair chart, a line per setting that was run now."""
        if not self.results:
            raise ConfigurationError(FINISHED_BEFORE)
        histories = {name: one for result in self.results for name, one in histories_of(result).items()}
        return plot_runs(histories, metric, self.results[0].metric)

    def to_pandas(self) -> Any:
        """The summaries as a pandas data frame, a row per setting, with the settings as the first columns."""
        found = ({key: value for key, value in row.items() if key != "set"} for row in self.rows)
        rows = zip(self.rows, found, strict=True)
        return data_frame([row["set"] | dict(flat_numbers(others)) for row, others in rows])


def sweep(
    config: Config | None = None,
    *,
    grid: Grid | None = None,
    method: str | None = None,
    data: DataSource | None = None,
    model: Model | Sequence[Model] | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    on_round: OnRound | None = None,
    **settings: Unpack[Settings],
) -> Sweep:
    """Run one method under every combination of settings.

    grid: settings and the values to try, {"method.kd": [0, 1, 10], "lr": [0.001, 0.01]}. Settings that only change
    weights and rates run side by side. With `validation` above 0, settings are ranked by validation accuracy, otherwise
    by accuracy on the test set, which is then too good for the best.
    method, data, model, settings: as in `simulate`, but the method by its name. out: a folder to save all runs in.
    resume: the folder of a sweep to continue; finished runs are not run again. on_round: as in `simulate`.

        >>> found = sweep(method="fedproto", grid={"method.kd": [0, 1]}, rounds=1, learners=2, train=40, test=20)
        >>> [row["set"] for row in found.rows]
        [{'method.kd': 0}, {'method.kd': 1}]
    """
    given = to_dataset(data)
    own = given if isinstance(given, Dataset) else None
    if resume is not None:
        if config is not None or settings or out is not None or grid or method or isinstance(given, str):
            raise ConfigurationError("resume takes its settings from the sweep's folder; give it no others")
        plan = read_sweep(Path(resume))
    else:
        config = resolve_config(config, given, model, method, settings)
        plan = plan_sweep(config, grid or {}, Path(out) if out is not None else None, own, model)
    if plan.separating:
        keys = ", ".join(plan.separating)
        when = "one after the other" if plan.config.execution.cluster is None else "at the same time"
        log.warning("%s cannot differ within a run: %d runs, %s", keys, len(plan.parts), when)
    with lock_folder(plan.folder) if plan.folder is not None else nullcontext():
        rows, results = _run_settings(plan, on_round, own, model)
    return Sweep(tuple(plan.settings), tuple(rows), plan.folder, tuple(results))


def plan_sweep(
    config: Config,
    grid: Grid,
    folder: Path | None,
    data: Dataset | None = None,
    model: Model | Sequence[Model] | None = None,
) -> SweepPlan:
    """A new sweep; every run is set up first, so that a wrong setting is refused before any run."""
    if not grid:
        raise ConfigurationError("nothing to sweep over; give a setting several values, such as --set method.kd=0,1,10")
    if folder is not None:
        refuse_used_folder(folder)
        config.check_savable()
    if config.variants:
        raise ConfigurationError("the configuration already has variants; sweep over one that has none")
    plan = SweepPlan(config, check_grid(grid), folder)
    for each in plan.configs():
        check_run(each, None if data is None else select_samples(data, each), model)
    if folder is not None:
        save_sweep(plan)
    return plan


def _run_settings(
    plan: SweepPlan, on_round: OnRound | None, data: Dataset | None, model: Model | Sequence[Model] | None
) -> tuple[list[dict[str, Any]], list[Result]]:
    """Run what is not finished: the summaries of all finished settings, and the results of the runs made now."""
    if plan.folder is None:
        results = list(run_all([PlannedRun(each, None, data, model) for each in plan.configs()], on_round))
        found = {
            number: summary
            for part, result in zip(plan.parts, results, strict=True)
            for number, summary in zip(part, result.summary()["variants"], strict=True)
        }
        return add_ranks([found[number] for number in sorted(found)]), results
    waiting = [PlannedRun(each, run.path, data, model) for run, _, each in plan.runs() if not is_finished(run)]
    results = list(run_all(waiting, on_round))
    plan.write_csv()
    return plan.summaries(), results
