"""The output of commands in a terminal: progress, tables, curves."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.data.description import describe_dataset
from consilience.data.local_datasets import LocalDatasets, make_local_datasets
from consilience.errors import CheckpointError, ConfigurationError
from consilience.files import report_write_errors
from consilience.kinds import Metric as Score
from consilience.kinds import kind_of
from consilience.presentation.advice import Advice
from consilience.presentation.baseline import differences_table
from consilience.presentation.data_overview import (
    classes_table,
    distances_table,
    has_pictures,
    headline,
    learners_grid,
    partition_table,
    sample_of,
)
from consilience.presentation.images import grid_of, in_terminal, picture_grid
from consilience.presentation.message import Message, message
from consilience.presentation.ranking import RANKINGS, TEST_CHOSE, Metric, ranked_by
from consilience.presentation.score_words import in_words_of, metric_of
from consilience.presentation.tables import (
    comparison_table,
    groups_table,
    method_label,
    new_table,
    rows_table,
    sweep_table,
)
from consilience.simulation.records.history import History
from consilience.simulation.records.provenance import describe_case, provenance
from consilience.simulation.records.run_lock import read_owner
from consilience.simulation.records.sweep_csv import SWEEP_CSV
from consilience.simulation.result import best_of
from consilience.simulation.setup.inputs import load_data, with_learners

_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
_COLUMNS = 10  # pictures of each class
_BARS = " ▁▂▃▄▅▆▇█"


class Screen:
    """Results on standard output, messages on standard error, and progress only if that is a terminal."""

    def __init__(self, json_lines: bool) -> None:
        self.json = json_lines
        wide = None if sys.stdout.isatty() else 200
        self.out = Console(width=wide, highlight=False, markup=False)
        self.err = Console(stderr=True, highlight=False, markup=False)
        self._progress: Progress | None = None
        self._task: Any = None
        self._shown = ""  # the task
        log = logging.getLogger("consilience")
        log.handlers, log.propagate = [_ScreenHandler(self)], False
        log.setLevel(logging.INFO)

    def on_round(self, method: str, round_: int, rounds: int, history: History) -> None:
        """Show the progress of a method."""
        if not self.err.is_terminal:
            return
        accuracy = history.last("accuracy")
        mean = "" if np.isnan(accuracy).all() else f"{np.nanmean(accuracy):.1f} %"
        self._show_progress(method, method, round_, rounds, mean)

    def progress(self, method: str, done: int, total: int) -> None:
        """Show the progress of all methods of a trial."""
        if self.err.is_terminal:
            self._show_progress("trial", f"trial: {method}", done, total)

    def _show_progress(self, task: str, text: str, done: int, total: int, accuracy: str = "") -> None:
        """Show how much of a task is done; the time that remains is of the task."""
        if self._progress is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} {task.fields[accuracy]}"),
            )
            # Redirecting keeps the bar and printed lines apart; output to a pipe or a file is left as it is.
            self._progress = Progress(
                *columns,
                TimeRemainingColumn(),
                console=self.err,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._progress.start()
        if self._task is None or task != self._shown:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._shown, self._task = task, self._progress.add_task(text, total=total, accuracy="")
        self._progress.update(self._task, description=text, completed=done, accuracy=accuracy)

    def _quiet(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def each(self, summary: Mapping[str, Any]) -> None:
        """Print the summary of a finished method as JSON, if asked for."""
        if self.json:
            print(json.dumps(summary), flush=True)

    def table(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        """Print the tables of runs."""
        self._quiet()
        if self.json:
            return
        for summary in summaries:
            if "variants" in summary:
                self.out.print(sweep_table(summary["variants"]))
        if plain := [summary for summary in summaries if "variants" not in summary]:
            self.out.print(comparison_table(plain, self.out.width))
            if any(summary.get("groups") for summary in plain):
                self.out.print(groups_table(plain))
            if (differences := differences_table(plain)) is not None:
                self.out.print(differences)
            if len(plain) > 1 and (said := message(plain)) is not None:
                self._say_message(said)

    def _say_message(self, said: Message) -> None:
        """Print what runs say, one paragraph per sentence; warnings are marked."""
        for sentence in said.sentences:
            warning = sentence in said.warnings
            self.out.print(f"warning: {sentence}" if warning else sentence, style="yellow" if warning else "")

    def advice(self, advice: Advice, numbers: bool) -> None:
        """Print the three sentences of an advice, one paragraph each; numbers: also its tables."""
        self._quiet()
        if self.json:
            print(json.dumps(advice.to_dict()), flush=True)
            return
        for sentence in advice.sentences:
            self.out.print(sentence, soft_wrap=not self.out.is_terminal)
        for table in advice.tables() if numbers else ():
            self.out.print(table)

    def show(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        """Print the results of a run, and where it is saved."""
        for summary in summaries:
            self.each(summary)
        self.table(summaries)
        folder = summaries[0]["run"]
        if folder:
            self.say(f"saved in {folder}")

    def show_sweep(self, outcomes: Sequence[Mapping[str, Any]], folder: Path) -> None:
        """Print all settings of a sweep, and the best one."""
        self._quiet()
        for outcome in outcomes:
            self.each(outcome)
        if outcomes and not self.json:
            self.out.print(sweep_table(outcomes))
        if (best := best_of(outcomes)) is not None:
            metric = ranked_by(outcomes)
            self.say(f"best: {describe_best(best, metric)}")
            if metric != "accuracy_validation":
                chosen = TEST_CHOSE.format(metric=RANKINGS[metric])
                self.say(f"warning: {in_words_of(metric_of(outcomes), chosen)}")
        self.say(f"saved in {folder}; one line for each setting, seed and round in {folder / SWEEP_CSV}")

    def data(self, config: Config, split: bool, out: Path | None) -> None:
        """Print a data set; with `split`, also its split between learners."""
        if out is not None and out.suffix.lower() not in _PICTURES:
            raise ConfigurationError(
                f"--out is {str(out)!r}; pictures are written to a file that ends in {', '.join(_PICTURES)}"
            )
        data = load_data(config, progress=self.err.is_terminal)
        config = with_learners(config, data)
        record = describe_dataset(data)
        local = make_local_datasets(
            data,
            config.federation.learners,
            partition=config.federation.partition,
            shift=config.federation.shift,
            seed=config.federation.seed,
        )
        if split:
            record = provenance(config, data, [local])
        if self.json:
            print(json.dumps(record))
        else:
            self._describe(record, data, local if split else None)
        if not has_pictures(data):
            if not data.alphabet:
                self.say(f"samples of {data.describe_shape()} cannot be shown as pictures")
            if out is not None:
                raise ConfigurationError(f"there are no pictures to write to {out}; leave --out out")
            return
        pictures = learners_grid(local) if split else grid_of(data, _COLUMNS)
        columns = data.groups if split else _COLUMNS
        rows = (
            [f"learner {who}" for who in range(len(pictures) // columns)]
            if split
            else data.group_names
            if data.kind == "regression"
            else list(data.labels)
        )
        if out is not None:
            with report_write_errors(out, "choose another place"):
                picture_grid(pictures, columns=columns, row_names=rows or None).save(out)
            self.say(f"pictures are in {out}")
        elif self.out.is_terminal and not self.json:
            self.out.print(in_terminal(pictures, columns))

    def _describe(self, record: Mapping[str, Any], data: Dataset, local: LocalDatasets | None) -> None:
        found = record if local is None else record["data"]
        self.out.print(headline(found), soft_wrap=True)
        self.out.print(classes_table(found))
        if data.alphabet:
            self.out.print(f"The first sample: {sample_of(data)}", soft_wrap=True)
        if local is not None:
            owners = next(iter(record["owners"].values()))
            self.out.print(
                "Samples of each owner" if owners else f"Samples of each {kind_of(data.target).group}, by learner"
            )
            self.out.print(partition_table(local, data.group_names, owners))
            self.out.print(
                "How far a learner's distributions are from the federation's (total variation, mean of learners)"
            )
            self.out.print(distances_table(record["distances"]))
            self.out.print(describe_case(local), soft_wrap=True)

    def print(self, table: Table) -> None:
        """Print a table."""
        self.out.print(table)

    def section(self, heading: str, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print a table with a heading and a text."""
        self._quiet()
        self.out.print(heading, soft_wrap=True)
        if text:
            self.out.print(text)
        self.out.print(rows_table(rows))

    def say(self, text: str) -> None:
        """Print a message on standard error."""
        self._quiet()
        self.err.print(text, soft_wrap=True)

    def curves(self, folder: Path, metric: Score) -> None:
        """Print the score over rounds, one line of bars for each method."""
        if self.json:
            return
        from consilience.simulation.compare import run_folders

        table = new_table(f"{metric.title} over rounds, from 0 to 100 %")
        for heading in ("method", "first", "", "last"):
            table.add_column(heading, no_wrap=True)
        for run in run_folders(folder):
            running = read_owner(run.path) is not None
            started = run.result is not None or run.metrics.exists()
            configs = [run.config.variant(i) for i in range(len(run.config.variants))] or [run.config]
            for i, config in enumerate(configs):
                curve = _curve(run.metrics, i, running) if started else []
                first, last = (f"{curve[0]:.1f}", f"{curve[-1]:.1f}") if curve else ("–", "–")  # not evaluated yet
                table.add_row(method_label(config.method.label, config.method.settings), first, bars(curve), last)
        self.out.print(table)


class _ScreenHandler(logging.Handler):
    """Shows the library's log messages on the screen, each once."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen
        self.shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message, wanted = record.getMessage(), record.levelno > logging.INFO or not self.screen.json
        if wanted and message not in self.shown:  # every method of a comparison has the same data
            self.shown.add(message)
            self.screen.say(message)


def describe_best(outcome: Mapping[str, Any], metric: Metric = "accuracy") -> str:
    """A setting and its result in the metric it was ranked by, with the spread."""
    setting = " ".join(f"{key}={value}" for key, value in outcome["set"].items())
    result = outcome[metric]
    over = f"±{result['std_seeds']:.2f} over {outcome['seeds']} seeds, " if result["std_seeds"] is not None else ""
    learners = "ensemble of all learners" if metric == "ensemble" else f"±{result['std_learners']:.2f} over learners"
    what = in_words_of(metric_of([outcome]), RANKINGS[metric])
    return f"{setting}: {result['mean']:.2f} % {what} ({over}{learners})"


def _curve(metrics: Path, variant: int, running: bool) -> list[float]:
    by_round: dict[int, list[float]] = {}
    try:
        with metrics.open(encoding="utf-8") as lines:
            for text in lines:
                if running and not text.endswith("\n"):  # it is being written
                    break
                line = json.loads(text)
                if line["accuracy"] is not None and line.get("variant", 0) == variant:
                    by_round.setdefault(line["round"], []).append(line["accuracy"])
        return [float(np.mean(by_round[r])) for r in sorted(by_round)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{metrics} is damaged or missing: {error}") from error


def bars(curve: Sequence[float], width: int = 40) -> str:
    """A curve as a line of bars, from 0 to 100 percent; what is below 0 is at 0."""
    if len(curve) > width:
        curve = [curve[i * len(curve) // width] for i in range(width - 1)] + [curve[-1]]
    return "".join(_BARS[max(0, round(value / 100 * (len(_BARS) - 1)))] for value in curve)
