"""The sections of a page about runs: for each task accuracy, bytes, time, and how to reproduce the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from consilience.presentation import charts
from consilience.presentation.tables import CAPTION, OPTIONAL_METRICS, format_bytes, format_optional, optional_metrics
from consilience.report.feature_sections import feature_sections, folders_with_checkpoint
from consilience.report.leakage_section import leakage_sections
from consilience.report.metrics import Rows
from consilience.report.runs import FoundRuns, ReportedRun
from consilience.report.section import Section
from consilience.simulation.records.round_record import PHASES

_MAX_LINES = 12  # of a chart whose lines can be distinguished
_MAX_POINTS = 200  # of a line, and of a strip of learners
_MAX_LEARNERS = 40  # rows of a class table
_MAX_CLASSES = 100
_PROBES = {"linear": "linear probe", "scaled": "scaled linear probe", "knn": "kNN"}
_OPTIONAL = {key: heading.replace("\n", " ") for key, (heading, _) in OPTIONAL_METRICS.items()}
_NO_VALUE = {"mean": None, "std_seeds": None}


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
    rows = [_summary_row(run, _probed(runs), optional_metrics([run.summary for run in runs])) for run in runs]
    yield Section(task, text=_extent(given), name=f"{prefix}task", level=1)
    yield Section("Summary", text=_caption(runs), table=rows, name=f"{prefix}summary")
    if groups := _group_rows(runs):
        yield Section("By group of learners", table=groups, name=f"{prefix}groups")
    yield from _groups_over_rounds(runs, prefix)
    yield from _settings(runs, prefix)
    best, note = _best(runs)
    yield from _accuracy(best, note, prefix)
    yield from _probes(best, note, prefix)
    yield from _ensemble(best, note, prefix)
    yield from _dependence(best, note, prefix)
    yield from _partition(runs, prefix)
    yield from _losses(best, note, prefix)
    yield from leakage_sections(runs, prefix)
    yield from feature_sections(runs, prefix, with_checkpoint)
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


# -- tables ------------------------------------------------------------------------------------------------------------


def _caption(runs: Sequence[ReportedRun]) -> str:
    """The meaning of the columns; for runs without labels, the source of their accuracy."""
    words = []
    if probed := _probed(runs):
        ways = {
            "linear": "Linear probe: accuracy of a linear classifier trained on a model's frozen features",
            "scaled": "Scaled linear probe: the same with each feature standardized to mean 0 and deviation 1",
            "knn": "kNN: accuracy of a vote of the training samples with the nearest features",
        }
        words.append(f"{'; '.join(ways[probe] for probe in probed)}.")
    for probe, name in _PROBES.items():
        if methods := [run.label for run in runs if not run.labeled and next(iter(_probe_results(run)), None) == probe]:
            of_runs = "" if len(methods) == len(runs) else f" of {', '.join(methods)}"
            words.append(f"Trained without labels: the accuracy{of_runs} is that of the {name}.")
    if public := sorted({float(run.summary.get("public_bytes") or 0) for run in runs} - {0.0}):
        words.append(
            f"The total includes the public set, {' or '.join(map(format_bytes, public))} before the first round."
        )
    words += [OPTIONAL_METRICS[key][1] for key in optional_metrics([run.summary for run in runs])]
    return "\n\n".join([CAPTION, *([" ".join(words)] if words else [])])


def _probed(runs: Sequence[ReportedRun]) -> list[str]:
    """The probes that any of the runs was tested with."""
    return [probe for probe in _PROBES if any(probe in _probe_results(run) for run in runs)]


def _probe_results(run: ReportedRun) -> Mapping[str, Any]:
    """The last accuracies of a run's probes."""
    return run.summary.get("probes") or {}


def _summary_row(run: ReportedRun, probed: Sequence[str], more: Sequence[str]) -> dict[str, Any]:
    s = run.summary
    total = s["seconds"].get("total")
    return {
        "method": run.label + ("" if s["finished"] else " (unfinished)"),
        "accuracy %": _with_spread(s["accuracy"]),
        "spread across learners": _tenths(s["accuracy"]["std_learners"]),
        "accuracy on own distribution": _tenths(s["accuracy_local"]["mean"]),
        **{_OPTIONAL[key]: format_optional(s, key) for key in more},
        **{_PROBES[probe]: _with_spread(_probe_results(run).get(probe, _NO_VALUE)) for probe in probed},
        "upload per round": format_bytes(s["bytes"]["up"]),
        "download per round": format_bytes(s["bytes"]["down"]),
        "total": format_bytes(s["bytes_total"]),
        "time": "–" if total is None else f"{total:.1f} s",
    }


def _group_rows(runs: Sequence[ReportedRun]) -> Rows:
    names = dict.fromkeys(name for run in runs for name in run.summary["groups"])
    return [
        {
            "learners": Path(name).name if name == group["model"] else name,
            "model": Path(group["model"]).name,
            "method": run.label,
            "accuracy %": _with_spread(group["accuracy"]),
            "accuracy on own distribution": _tenths(group["accuracy_local"]["mean"]),
            "upload per round": format_bytes(group["bytes"]["up"]),
            "download per round": format_bytes(group["bytes"]["down"]),
        }
        for name, run in product(names, runs)
        if (group := run.summary["groups"].get(name))
    ]


def _with_spread(accuracy: Mapping[str, Any]) -> str:
    spread = accuracy["std_seeds"]
    return _tenths(accuracy["mean"]) + ("" if spread is None else f" ± {spread:.1f}")


def _tenths(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


# -- charts ------------------------------------------------------------------------------------------------------------


def _best(runs: Sequence[ReportedRun]) -> tuple[list[ReportedRun], str]:
    """The runs that are drawn in charts, and a note if others are left out."""
    if len(runs) <= _MAX_LINES:
        return list(runs), ""
    ranked = sorted(runs, key=lambda run: -(run.summary["accuracy"]["mean"] or 0.0))[:_MAX_LINES]
    return [run for run in runs if run in ranked], f" Of {len(runs)} runs the best {_MAX_LINES} are shown."


def _settings(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """A heatmap of accuracies, if two settings were swept."""
    swept = [run.summary for run in runs if run.summary.get("set") and run.summary["accuracy"]["mean"] is not None]
    axes = list(dict.fromkeys(key for s in swept for key in s["set"]))
    if len(swept) != len(runs) or len(axes) != 2 or len({str(s["set"]) for s in swept}) != len(swept):
        return
    rows = [{key: str(s["set"].get(key)) for key in axes} | {"accuracy": s["accuracy"]["mean"]} for s in swept]
    chart = charts.heatmap(rows, axes[1], axes[0], "accuracy", title="accuracy, %")
    yield Section("Accuracy by setting", figure=chart, name=f"{prefix}settings")


def _accuracy(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    rows, names = _curves(runs, "accuracy"), [run.label for run in runs]
    if not rows:
        yield Section("Accuracy", text="No round has been tested yet.", name=f"{prefix}accuracy")
        return
    text = f"Mean over learners and seeds. {_band(runs)}{note}"
    yield Section("Accuracy over rounds", text=text, figure=charts.curves(rows, names=names), name=f"{prefix}accuracy")
    text = f"Bytes of the whole federation, both ways. A method that sends nothing is a horizontal line.{note}"
    chart = charts.over_bytes(_over_bytes(runs), names)
    yield Section("Accuracy over bytes", text=text, figure=chart, name=f"{prefix}bytes")
    text = (
        f"Each tick is a learner's last accuracy, the mean over seeds; the box spans the middle half of learners.{note}"
    )
    chart = charts.spread(_learners(runs), names)
    yield Section("Final accuracy per learner", text=text, figure=chart, name=f"{prefix}learners")


def _groups_over_rounds(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """The accuracy on own distribution of each group of learners, from the round in which it joined."""
    lines = {
        group if len(runs) == 1 else f"{run.label}, {group}": metrics
        for run in runs
        for group, metrics in (run.metrics.groups.items() if len(run.metrics.groups) > 1 else ())
    }
    names = list(lines)[:_MAX_LINES]
    rows = [{"method": name, **row} for name in names for row in _thinned(lines[name].curve("accuracy_local"))]
    if rows:
        cut = f" Of {len(lines)} lines the first {_MAX_LINES} are shown." if len(lines) > _MAX_LINES else ""
        text = f"On test samples like the learners' own; a line starts when its learners join. {_band(runs)}{cut}"
        chart = charts.curves(rows, y="accuracy_local", title="accuracy on own distribution, %", names=names)
        yield Section(
            "Accuracy of each group of learners over rounds",
            text=text,
            figure=chart,
            name=f"{prefix}groups-over-rounds",
        )


def _probes(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The accuracy of probes over rounds."""
    rows = [
        {"method": run.label, "probe": name, "round": row["round"], "accuracy": row[f"accuracy_{probe}"]}
        for run, (probe, name) in product(runs, _PROBES.items())
        for row in _thinned(run.metrics.curve(f"accuracy_{probe}"))
    ]
    if rows:
        text = f"Accuracy of probes on learners' features, the mean over learners and seeds.{note}"
        chart = charts.probes(rows, [run.label for run in runs])
        yield Section("Probes over rounds", text=text, figure=chart, name=f"{prefix}probes")


def _ensemble(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The accuracy of ensembles over rounds."""
    rows = [
        {"method": run.label, "prediction": _OPTIONAL[key], "round": row["round"], "accuracy": row[f"accuracy_{key}"]}
        for run, key in product(runs, ("ensemble", "heads"))
        for row in _thinned(run.metrics.curve(f"accuracy_{key}"))
    ]
    if rows:
        there = {row["prediction"] for row in rows}
        words = [OPTIONAL_METRICS[key][1] for key, name in _OPTIONAL.items() if name in there]
        text = f"{' '.join(words)} The mean over seeds.{note}"
        chart = charts.probes(rows, [run.label for run in runs], by="prediction")
        yield Section("Ensemble accuracy over rounds", text=text, figure=chart, name=f"{prefix}ensemble")


def _dependence(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The distance correlation of the watched layer over rounds."""
    if rows := _curves(runs, "dependence"):
        text = (
            "Of test samples and the outputs of the watched layer, from 0 to 1: the lower, the less it reveals. "
            f"{_band(runs)}{note}"
        )
        chart = charts.curves(rows, y="dependence", title="distance correlation", names=[run.label for run in runs])
        yield Section("Distance correlation over rounds", text=text, figure=chart, name=f"{prefix}dependence")


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
    table, labels = found["table"], found["labels"]  # (learners, classes)
    rows = [
        {"learner": who, "class": labels[c], "samples": int(table[who, c])}
        for who, c in product(range(min(len(table), _MAX_LEARNERS)), range(min(table.shape[1], _MAX_CLASSES)))
    ]
    cut = table.shape[0] > _MAX_LEARNERS or table.shape[1] > _MAX_CLASSES
    more = f" There are {table.shape[0]} learners and {table.shape[1]} classes; the first are shown." if cut else ""
    text = f"{found['data']} split by {found['split']}, in the first seed; {found['case']}.{more}"
    yield Section(
        "Samples of each class", text=text, figure=charts.class_counts_heatmap(rows), name=f"{prefix}partition"
    )


def _losses(runs: Sequence[ReportedRun], note: str, prefix: str) -> Iterator[Section]:
    """The terms of the loss, and the bound on the mutual information, over rounds."""
    rows: Rows = []
    names = [run.label for run in runs]
    for run in runs:
        for name in (name for name in run.metrics.names if name.startswith("loss.")):
            term = name.removeprefix("loss.")
            for row in _thinned(run.metrics.curve(name)):
                rows.append({"method": run.label, "term": term, "round": row["round"], "value": row[name]})
    used = {(row["method"], row["term"]) for row in rows if row["value"]}
    rows = [row for row in rows if (row["method"], row["term"]) in used]  # terms that are always 0 are left out
    if rows:
        text = f"Before weighting; the mean over seeds and learners that have the term.{note}"
        yield Section("Loss terms", text=text, figure=charts.losses(rows, names), name=f"{prefix}losses")
    if bound := _curves(runs, "mutual_information"):
        text = (
            "A lower bound on the mutual information of learners' representations, from their observations; "
            f"a bound below 0 says nothing. {_band(runs)}{note}"
        )
        chart = charts.mutual_information(bound, names)
        yield Section("Mutual information", text=text, figure=chart, name=f"{prefix}mutual-information")


def _time(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    rows = [
        {"method": run.label, "phase": phase, "seconds": run.summary["seconds"].get(phase) or 0.0}
        for run, phase in product((run for run in runs if run.summary["seconds"]), PHASES)
    ]
    if rows:
        text = "Wall-clock time of all seeds together."
        yield Section("Time by phase", text=text, figure=charts.phases(rows), name=f"{prefix}time")


def _reproduce(runs: Sequence[ReportedRun], prefix: str) -> Section:
    texts = {run.folder: run.config for run in runs if run.config}
    text = "Each of these files reproduces its run: save it as FILE.toml, and run: consilience run FILE.toml"
    details = [(f"{folder / 'config.toml'}", config) for folder, config in texts.items()]
    return Section("Reproduce these runs", text=text if details else "", details=details, name=f"{prefix}reproduce")
