"""The sections of a page about runs: for each task accuracy, bytes, time, and how to reproduce the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from consilience.kinds import Metric
from consilience.presentation import charts
from consilience.presentation.gains import is_control
from consilience.presentation.method_looks import look_order
from consilience.presentation.ranking import rank
from consilience.presentation.score_words import in_words_of, metric_of
from consilience.presentation.tables import OPTIONAL_METRICS
from consilience.report.audit_section import audit_sections
from consilience.report.baseline_section import baseline_sections
from consilience.report.confusion_section import confusion_sections
from consilience.report.feature_sections import feature_sections, folders_with_checkpoint
from consilience.report.leakage_section import leakage_sections
from consilience.report.metrics import Rows
from consilience.report.runs import FoundRuns, ReportedRun
from consilience.report.section import Section
from consilience.report.story import cost_section, gains_section, headline_section
from consilience.report.summary_tables import OPTIONAL_NAMES, PROBES, summary_sections
from consilience.simulation.records.round_record import PHASES

_MAX_LINES = 12  # of a chart whose lines can be distinguished
_MAX_POINTS = 200  # of a line, and of a strip of learners
_MAX_LEARNERS = 40  # rows of a class table
_MAX_CLASSES = 100


def report_sections(found: FoundRuns) -> list[Section]:
    """All sections of a page about runs, grouped by task."""
    sections = [Section("Missing data", notes=found.notes, name="missing", level=1)] if found.notes else []
    tasks = list(dict.fromkeys(run.task for run in found.runs))
    with_checkpoint = folders_with_checkpoint(found.runs)
    for number, task in enumerate(tasks, start=1):
        prefix = f"task-{number}-" if len(tasks) > 1 else ""
        sections += _task_sections(task, [run for run in found.runs if run.task == task], prefix, with_checkpoint)
    return sections


def _task_sections(
    task: str, given: Sequence[ReportedRun], prefix: str, with_checkpoint: Sequence[Path]
) -> Iterator[Section]:
    runs = _shorten_labels(given)
    controls = [run for run in runs if is_control(run.summary)]  # in tables and beside gains, not in other charts
    methods = [run for run in runs if not is_control(run.summary)] or runs
    best, note = _best(methods)
    yield headline_section(task, _extent(given), runs, prefix)
    over = {section.slug.removeprefix(prefix): section for section in _accuracy(best, note, prefix)}
    cost, gained = cost_section(runs, prefix), gains_section(runs, [*best, *controls], note, prefix)
    settings = next(_settings(runs, prefix), None)
    if cost is None and settings is not None:
        cost, settings = settings, None
    first = [cost or over.pop("bytes", None), gained or over.pop("accuracy", None)]
    yield from (replace(section, beside="first") for section in first if section is not None)
    yield from summary_sections(runs, prefix)
    yield from baseline_sections(runs, prefix)
    yield from _groups_over_rounds(methods, prefix)
    yield from [] if settings is None else [settings]
    yield from over.values()
    yield from _probes(best, note, prefix)
    yield from _ensemble(best, note, prefix)
    yield from _dependence(best, note, prefix)
    yield from _partition(runs, prefix)
    yield from _losses(best, note, prefix)
    yield from confusion_sections(methods, prefix)
    yield from leakage_sections(runs, prefix)
    yield from audit_sections(runs, prefix)
    yield from feature_sections(methods, prefix, with_checkpoint)
    yield from _time(runs, prefix)
    yield _reproduce(runs, prefix)


def _extent(runs: Sequence[ReportedRun]) -> str:
    """The numbers of runs, rounds and seeds."""
    counts = {
        noun: sorted({int(run.summary[f"{noun}s"]) for run in runs if run.summary.get(f"{noun}s") is not None})
        for noun in ("round", "seed")
    }
    method = _common_method(runs)
    words = [f"{len(runs)} run" + "s" * (len(runs) != 1) + (f" of {method}" if method else "")]
    for noun, found in counts.items():
        words += [f"{' or '.join(map(str, found))} {noun}" + "s" * (found != [1])] if found else []
    return ", ".join(words)


def _common_method(runs: Sequence[ReportedRun]) -> str:
    """The method, if all runs have the same and differ only in its settings."""
    names = {method for run in runs for method, _, settings in [run.label.partition(" ")] if "=" in settings}
    alike = all(run.label.startswith(f"{name} ") for name in names for run in runs)
    return names.pop() if len(names) == 1 and len(runs) > 1 and alike else ""


def _shorten_labels(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs with labels that omit the method if all have the same."""
    method = _common_method(runs)
    return [replace(run, label=run.label.removeprefix(f"{method} ")) for run in runs] if method else list(runs)


def _looks(runs: Sequence[ReportedRun]) -> list[str]:
    """The labels of runs in the order of their looks."""
    return look_order([run.label for run in runs])


# -- charts ------------------------------------------------------------------------------------------------------------


def _best(runs: Sequence[ReportedRun]) -> tuple[list[ReportedRun], str]:
    """The runs that are drawn in charts, and a note if others are left out."""
    if len(runs) <= _MAX_LINES:
        return list(runs), ""
    first = [id(summary) for summary in rank([run.summary for run in runs])[:_MAX_LINES]]
    return [run for run in runs if id(run.summary) in first], f" Of {len(runs)} runs the best {_MAX_LINES} are shown."


def _settings(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """A heatmap of accuracies, if two settings were swept."""
    swept = [run.summary for run in runs if run.summary.get("set") and run.summary["accuracy"]["mean"] is not None]
    axes = list(dict.fromkeys(key for s in swept for key in s["set"]))
    if len(swept) != len(runs) or len(axes) != 2 or len({str(s["set"]) for s in swept}) != len(swept):
        return
    rows = [{key: str(s["set"].get(key)) for key in axes} | {"accuracy": s["accuracy"]["mean"]} for s in swept]
    metric = metric_of(swept)
    chart = charts.heatmap(rows, axes[1], axes[0], "accuracy", title=f"{metric.name}, %")
    yield Section(f"{metric.title} by setting", figure=chart, name=f"{prefix}settings")


def _accuracy(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    rows, names, metric = _curves(runs, "accuracy"), _looks(runs), _metric(runs)
    if not rows:
        yield Section(metric.title, text="No round has been tested yet.", name=f"{prefix}accuracy")
        return
    text = f"Mean over learners and seeds. {_band(runs)}{note}"
    chart = charts.curves(rows, title=f"{metric.name}, %", names=names)
    yield Section(f"{metric.title} over rounds", text=text, figure=chart, name=f"{prefix}accuracy")
    text = f"Bytes of the whole federation, both ways. A method that sends nothing is a horizontal line.{note}"
    chart = charts.over_bytes(_over_bytes(runs), names, metric.name)
    yield Section(f"{metric.title} over bytes", text=text, figure=chart, name=f"{prefix}bytes")
    last = f"Each tick is a learner's last {metric.name}, the mean over seeds"
    text = f"{last}; the box spans the middle half of learners.{note}"
    chart = charts.spread(_learners(runs), names, metric.name)
    yield Section(f"Final {metric.name} per learner", text=text, figure=chart, name=f"{prefix}learners")


def _groups_over_rounds(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """The own accuracy of each group of learners, from the round in which it joined."""
    lines = {
        group if len(runs) == 1 else f"{run.label}, {group}": metrics
        for run in runs
        for group, metrics in (run.metrics.groups.items() if len(run.metrics.groups) > 1 else ())
    }
    names = list(lines)[:_MAX_LINES]
    rows = [{"method": name, **row} for name in names for row in _thinned(lines[name].curve("accuracy_own"))]
    if rows:
        cut = f" Of {len(lines)} lines the first {_MAX_LINES} are shown." if len(lines) > _MAX_LINES else ""
        text = f"On test samples like the learners' own; a line starts when its learners join. {_band(runs)}{cut}"
        metric = _metric(runs)
        chart = charts.curves(rows, y="accuracy_own", title=f"own {metric.name}, %", names=names)
        yield Section(
            f"{metric.title} of each group of learners over rounds",
            text=text,
            figure=chart,
            name=f"{prefix}groups-over-rounds",
        )


def _probes(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The accuracy of probes over rounds."""
    rows = [
        {"method": run.label, "probe": name, "round": row["round"], "accuracy": row[f"accuracy_{probe}"]}
        for run, (probe, name) in product(runs, PROBES.items())
        for row in _thinned(run.metrics.curve(f"accuracy_{probe}"))
    ]
    if rows:
        text = f"Accuracy of probes on learners' features, the mean over learners and seeds.{note}"
        chart = charts.probes(rows, _looks(runs))
        yield Section("Probes over rounds", text=text, figure=chart, name=f"{prefix}probes")


def _ensemble(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The accuracy of ensembles over rounds."""
    rows = [
        {
            "method": run.label,
            "prediction": OPTIONAL_NAMES[key],
            "round": row["round"],
            "accuracy": row[f"accuracy_{key}"],
        }
        for run, key in product(runs, ("ensemble", "heads"))
        for row in _thinned(run.metrics.curve(f"accuracy_{key}"))
    ]
    if rows:
        there, metric = {row["prediction"] for row in rows}, _metric(runs)
        words = [in_words_of(metric, OPTIONAL_METRICS[key][1]) for key, name in OPTIONAL_NAMES.items() if name in there]
        text = f"{' '.join(words)} The mean over seeds.{note}"
        chart = charts.probes(rows, _looks(runs), by="prediction", score=metric.name)
        yield Section(f"Ensemble {metric.name} over rounds", text=text, figure=chart, name=f"{prefix}ensemble")


def _dependence(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The distance correlation of the watched layer over rounds."""
    if rows := _curves(runs, "dependence"):
        text = (
            "Of test samples and the outputs of the watched layer, from 0 to 1: the lower, the less it reveals. "
            f"{_band(runs)}{note}"
        )
        chart = charts.curves(rows, y="dependence", title="distance correlation", names=_looks(runs))
        yield Section("Distance correlation over rounds", text=text, figure=chart, name=f"{prefix}dependence")


def _metric(runs: Sequence[ReportedRun]) -> Metric:
    """The score of runs of one task."""
    return metric_of([run.summary for run in runs])


def _band(runs: Sequence[ReportedRun]) -> str:
    several = {len(run.metrics.seeds) > 1 for run in runs}
    seeds, learners = "one standard deviation over seeds", "one standard deviation over learners"
    if several == {True, False}:
        return f"Bands are {seeds}, or over learners where there is one seed."
    return f"Bands are {seeds if several == {True} else learners}."


def _curves(runs: Sequence[ReportedRun], name: str) -> Rows:
    return [{"method": run.label, **row} for run in runs for row in _thinned(run.metrics.curve(name))]


def _over_bytes(runs: Sequence[ReportedRun]) -> Rows:
    rows = []
    for run in runs:
        sent = run.metrics.cumulative_bytes()
        for row in _thinned(run.metrics.curve("accuracy")):
            rows.append({"method": run.label, "bytes": sent[row["round"]], "accuracy": row["accuracy"]})
    return rows


def _learners(runs: Sequence[ReportedRun]) -> Rows:
    rows: Rows = []
    for run in runs:
        seeds: dict[int, list[float]] = {}
        for (_, learner), accuracy in run.metrics.final.items():
            seeds.setdefault(learner, []).append(accuracy)
        means = [{"method": run.label, "learner": who, "accuracy": float(np.mean(a))} for who, a in seeds.items()]
        rows += _thinned(sorted(means, key=lambda row: row["accuracy"]))  # evenly by rank, which keeps the quartiles
    return rows


def _thinned(rows: Rows) -> Rows:
    """At most 200 rows, evenly spaced, with the first and the last."""
    if len(rows) <= _MAX_POINTS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, _MAX_POINTS).round().astype(int)]


def _partition(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """The samples of each class of each learner, in the first seed."""
    tables = [run.provenance for run in runs if run.provenance is not None]
    if not tables:
        return
    found = max(tables, key=lambda each: len(each["table"]))
    table, labels, group = found["table"], found["labels"], found["group"]  # (learners, classes)
    rows = [
        {"learner": who, group: labels[c], "samples": int(table[who, c])}
        for who, c in product(range(min(len(table), _MAX_LEARNERS)), range(min(table.shape[1], _MAX_CLASSES)))
    ]
    cut = table.shape[0] > _MAX_LEARNERS or table.shape[1] > _MAX_CLASSES
    more = f" There are {table.shape[0]} learners and {table.shape[1]} columns; the first are shown." if cut else ""
    text = f"{found['data']} split by {found['split']}, in the first seed; {found['case']}.{more}"
    yield Section(
        f"Samples of each {group}",
        text=text,
        figure=charts.class_counts_heatmap(rows, group),
        name=f"{prefix}partition",
    )


def _losses(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The terms of the loss, and the bound on the mutual information, over rounds."""
    rows: Rows = []
    names = _looks(runs)
    for run in runs:
        for name in (name for name in run.metrics.names if name.startswith("loss.")):
            term = name.removeprefix("loss.")
            for row in _thinned(run.metrics.curve(name)):
                rows.append({"method": run.label, "term": term, "round": row["round"], "value": row[name]})
    used = {(row["method"], row["term"]) for row in rows if row["value"]}
    rows = [row for row in rows if (row["method"], row["term"]) in used]  # terms that are always 0 are left out
    if rows:
        text = f"Before weighting; the mean over seeds and learners that have the term.{note}"
        yield Section("Loss terms", text=text, figure=charts.losses(rows, names), name=f"{prefix}losses", folded=True)
    if bound := _curves(runs, "mutual_information"):
        text = (
            "A lower bound on the mutual information of learners' representations, from their observations, in-sample: "
            "measured on the samples that learners train on, it says nothing of other samples. "
            f"A bound below 0 says nothing at all. {_band(runs)}{note}"
        )
        chart = charts.mutual_information(bound, names)
        yield Section("Mutual information", text=text, figure=chart, name=f"{prefix}mutual-information", folded=True)


def _time(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    rows = [
        {"method": run.label, "phase": phase, "seconds": run.summary["seconds"].get(phase) or 0.0}
        for run, phase in product((run for run in runs if run.summary["seconds"]), PHASES)
    ]
    if rows:
        text = "Wall-clock time of all seeds together."
        yield Section("Time by phase", text=text, figure=charts.phases(rows), name=f"{prefix}time", folded=True)


def _reproduce(runs: Sequence[ReportedRun], prefix: str) -> Section:
    texts = {run.folder: run.config for run in runs if run.config}
    text = "Each of these files reproduces its run: save it as FILE.toml, and run: consilience run FILE.toml"
    details = [(f"{folder / 'config.toml'}", config) for folder, config in texts.items()]
    return Section("Reproduce these runs", text=text if details else "", details=details, name=f"{prefix}reproduce")
