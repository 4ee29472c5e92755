"""What a page says about runs: for each task what methods reached, what it cost, and how to do it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from consilience.presentation import charts
from consilience.presentation.tables import CAPTION, OPTIONAL_METRICS, format_bytes, format_optional, optional_metrics
from consilience.report.feature_sections import maps, with_models
from consilience.report.leakage_section import leakage_sections
from consilience.report.metrics import Rows
from consilience.report.runs import Found, ReportedRun
from consilience.report.section import Section
from consilience.simulation.records.round_record import PHASES

_LINES = 12  # of a chart in which one can still be told from another
_POINTS = 200  # of a line, and of a strip of learners
_LEARNERS = 40  # rows of a class table
_CLASSES = 100
_PROBES = {"linear": "linear probe", "scaled": "scaled linear probe", "knn": "kNN"}
_ALSO = {key: heading.replace("\n", " ") for key, (heading, _) in OPTIONAL_METRICS.items()}
_UNTOLD = {"mean": None, "std_seeds": None}


def chapters(found: Found) -> list[Section]:
    """All sections of a page about runs, those of one task together."""
    sections = [Section("What is missing", notes=found.notes, name="missing", level=1)] if found.notes else []
    tasks = list(dict.fromkeys(run.task for run in found.runs))
    mapped = with_models(found.runs)
    for number, task in enumerate(tasks, start=1):
        prefix = f"task-{number}-" if len(tasks) > 1 else ""
        sections += _chapter(task, [run for run in found.runs if run.task == task], prefix, mapped)
    return sections


def _chapter(task: str, given: Sequence[ReportedRun], prefix: str, mapped: Sequence[Path]) -> Iterator[Section]:
    runs = _briefly(given)
    outcomes = [_outcome(run, _probed(runs), optional_metrics([run.summary for run in runs])) for run in runs]
    yield Section(task, text=_extent(given), name=f"{prefix}task", level=1)
    yield Section("Summary", text=_caption(runs), table=outcomes, name=f"{prefix}summary")
    if kinds := _kinds(runs):
        yield Section("By kind of learner", table=kinds, name=f"{prefix}kinds")
    yield from _kinds_over_rounds(runs, prefix)
    yield from _settings(runs, prefix)
    best, said = _best(runs)
    yield from _accuracy(best, said, prefix)
    yield from _probes(best, said, prefix)
    yield from _together(best, said, prefix)
    yield from _dependence(best, said, prefix)
    yield from _dealt(runs, prefix)
    yield from _inner(best, said, prefix)
    yield from leakage_sections(runs, prefix)
    yield from maps(runs, prefix, mapped)
    yield from _time(runs, prefix)
    yield _again(runs, prefix)


def _extent(runs: Sequence[ReportedRun]) -> str:
    """How many runs, rounds and seeds."""
    counts = {
        noun: sorted({int(run.summary[f"{noun}s"]) for run in runs if run.summary.get(f"{noun}s") is not None})
        for noun in ("round", "seed")
    }
    method = _common(runs)
    said = [f"{len(runs)} run" + "s" * (len(runs) != 1) + (f" of {method}" if method else "")]
    for noun, found in counts.items():
        said += [f"{' or '.join(map(str, found))} {noun}" + "s" * (found != [1])] if found else []
    return ", ".join(said)


def _common(runs: Sequence[ReportedRun]) -> str:
    """The method, where runs are all of one and only its settings tell them apart."""
    names = {method for run in runs for method, _, settings in [run.label.partition(" ")] if "=" in settings}
    alike = all(run.label.startswith(f"{name} ") for name in names for run in runs)
    return names.pop() if len(names) == 1 and len(runs) > 1 and alike else ""


def _briefly(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs, without the name of a method that they are all of."""
    method = _common(runs)
    return [replace(run, label=run.label.removeprefix(f"{method} ")) for run in runs] if method else list(runs)


# -- tables ------------------------------------------------------------------------------------------------------------


def _caption(runs: Sequence[ReportedRun]) -> str:
    """What the numbers mean; of runs without labels, what their accuracy is."""
    said = []
    if probed := _probed(runs):
        ways = {
            "linear": "Linear probe: what a linear classifier tells that was trained on a model's features",
            "scaled": "Scaled linear probe: the same where each feature was first brought to mean 0 and deviation 1",
            "knn": "kNN: what the training samples with the nearest features tell",
        }
        said.append(f"{'; '.join(ways[probe] for probe in probed)}.")
    for probe, name in _PROBES.items():
        if who := [run.label for run in runs if not run.labeled and next(iter(_told(run)), None) == probe]:
            whose = "" if len(who) == len(runs) else f" of {', '.join(who)}"
            said.append(f"Learned without labels: the accuracy{whose} is that of the {name}.")
    if heard := sorted({float(run.summary.get("public_bytes") or 0) for run in runs} - {0.0}):
        said.append(f"The total holds the public set, {' or '.join(map(format_bytes, heard))} before the first round.")
    said += [OPTIONAL_METRICS[key][1] for key in optional_metrics([run.summary for run in runs])]
    return "\n\n".join([CAPTION, *([" ".join(said)] if said else [])])


def _probed(runs: Sequence[ReportedRun]) -> list[str]:
    """The probes that any of the runs was tested by."""
    return [probe for probe in _PROBES if any(probe in _told(run) for run in runs)]


def _told(run: ReportedRun) -> Mapping[str, Any]:
    """What probes told of a run when it was last tested."""
    return run.summary.get("probes") or {}


def _outcome(run: ReportedRun, probed: Sequence[str], more: Sequence[str]) -> dict[str, Any]:
    s = run.summary
    total = s["seconds"].get("total")
    return {
        "method": run.label + ("" if s["finished"] else " (unfinished)"),
        "accuracy %": _reached(s["accuracy"]),
        "spread across learners": _tenths(s["accuracy"]["std_learners"]),
        "accuracy on own distribution": _tenths(s["accuracy_local"]["mean"]),
        **{_ALSO[key]: format_optional(s, key) for key in more},
        **{_PROBES[probe]: _reached(_told(run).get(probe, _UNTOLD)) for probe in probed},
        "upload per round": format_bytes(s["bytes"]["up"]),
        "download per round": format_bytes(s["bytes"]["down"]),
        "total": format_bytes(s["bytes_total"]),
        "time": "–" if total is None else f"{total:.1f} s",
    }


def _kinds(runs: Sequence[ReportedRun]) -> Rows:
    names = dict.fromkeys(name for run in runs for name in run.summary["kinds"])
    return [
        {
            "learners": Path(name).name if name == kind["model"] else name,
            "model": Path(kind["model"]).name,
            "method": run.label,
            "accuracy %": _reached(kind["accuracy"]),
            "accuracy on own distribution": _tenths(kind["accuracy_local"]["mean"]),
            "upload per round": format_bytes(kind["bytes"]["up"]),
            "download per round": format_bytes(kind["bytes"]["down"]),
        }
        for name, run in product(names, runs)
        if (kind := run.summary["kinds"].get(name))
    ]


def _reached(accuracy: Mapping[str, Any]) -> str:
    spread = accuracy["std_seeds"]
    return _tenths(accuracy["mean"]) + ("" if spread is None else f" ± {spread:.1f}")


def _tenths(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


# -- charts ------------------------------------------------------------------------------------------------------------


def _best(runs: Sequence[ReportedRun]) -> tuple[list[ReportedRun], str]:
    """The runs that charts have room for, and a word about those they have not."""
    if len(runs) <= _LINES:
        return list(runs), ""
    ranked = sorted(runs, key=lambda run: -(run.summary["accuracy"]["mean"] or 0.0))[:_LINES]
    return [run for run in runs if run in ranked], f" Of {len(runs)} runs the best {_LINES} are shown."


def _settings(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """A map of accuracies, where two settings were swept over."""
    swept = [run.summary for run in runs if run.summary.get("set") and run.summary["accuracy"]["mean"] is not None]
    axes = list(dict.fromkeys(key for s in swept for key in s["set"]))
    if len(swept) != len(runs) or len(axes) != 2 or len({str(s["set"]) for s in swept}) != len(swept):
        return
    rows = [{key: str(s["set"].get(key)) for key in axes} | {"accuracy": s["accuracy"]["mean"]} for s in swept]
    chart = charts.heatmap(rows, axes[1], axes[0], "accuracy", title="accuracy, %")
    yield Section("Accuracy by setting", figure=chart, name=f"{prefix}settings")


def _accuracy(runs: Sequence[ReportedRun], said: str, prefix: str) -> Iterator[Section]:
    rows, names = _curves(runs, "accuracy"), [run.label for run in runs]
    if not rows:
        yield Section("Accuracy", text="No round has been tested yet.", name=f"{prefix}accuracy")
        return
    text = f"Mean over learners and seeds. {_band(runs)}{said}"
    yield Section("Accuracy over rounds", text=text, figure=charts.curves(rows, names=names), name=f"{prefix}accuracy")
    text = f"What a whole federation has sent, both ways. Who sends nothing is a level line.{said}"
    chart = charts.over_bytes(_over_bytes(runs), names)
    yield Section("Accuracy over bytes", text=text, figure=chart, name=f"{prefix}bytes")
    text = f"Each stroke is a learner when last tested, the mean over its seeds; the box holds the middle half.{said}"
    chart = charts.spread(_learners(runs), names)
    yield Section("Final accuracy per learner", text=text, figure=chart, name=f"{prefix}learners")


def _kinds_over_rounds(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """What learners of each kind told right of samples like their own, from the round on in which they joined."""
    lines = {
        kind if len(runs) == 1 else f"{run.label}, {kind}": metrics
        for run in runs
        for kind, metrics in (run.metrics.kinds.items() if len(run.metrics.kinds) > 1 else ())
    }
    names = list(lines)[:_LINES]
    rows = [{"method": name, **row} for name in names for row in _thinned(lines[name].curve("accuracy_local"))]
    if rows:
        cut = f" Of {len(lines)} lines the first {_LINES} are shown." if len(lines) > _LINES else ""
        text = f"On test samples as the learners' own are; who joins later begins later. {_band(runs)}{cut}"
        chart = charts.curves(rows, y="accuracy_local", title="accuracy on own data, %", names=names)
        yield Section("Kinds of learners over rounds", text=text, figure=chart, name=f"{prefix}kinds-over-rounds")


def _probes(runs: Sequence[ReportedRun], said: str, prefix: str) -> Iterator[Section]:
    """What probes told of learners' features, round by round."""
    rows = [
        {"method": run.label, "probe": name, "round": row["round"], "accuracy": row[f"accuracy_{probe}"]}
        for run, (probe, name) in product(runs, _PROBES.items())
        for row in _thinned(run.metrics.curve(f"accuracy_{probe}"))
    ]
    if rows:
        text = f"What probes tell by learners' features, the mean over learners and seeds.{said}"
        chart = charts.probes(rows, [run.label for run in runs])
        yield Section("Probes over rounds", text=text, figure=chart, name=f"{prefix}probes")


def _together(runs: Sequence[ReportedRun], said: str, prefix: str) -> Iterator[Section]:
    """What all learners told together, round by round."""
    rows = [
        {"method": run.label, "told by": _ALSO[key], "round": row["round"], "accuracy": row[f"accuracy_{key}"]}
        for run, key in product(runs, ("ensemble", "heads"))
        for row in _thinned(run.metrics.curve(f"accuracy_{key}"))
    ]
    if rows:
        there = {row["told by"] for row in rows}
        words = [OPTIONAL_METRICS[key][1] for key, name in _ALSO.items() if name in there]
        text = f"{' '.join(words)} The mean over seeds.{said}"
        chart = charts.probes(rows, [run.label for run in runs], by="told by")
        yield Section("All asked together, over rounds", text=text, figure=chart, name=f"{prefix}together")


def _dependence(runs: Sequence[ReportedRun], said: str, prefix: str) -> Iterator[Section]:
    """How much a layer gave away of its inputs, round by round."""
    if rows := _curves(runs, "dependence"):
        text = (
            "Of test samples and what the layer watched makes of them, 0 to 1: the less, the less it tells of them. "
            f"{_band(runs)}{said}"
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
        sent = run.metrics.sent()
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
        rows += _thinned(sorted(means, key=lambda row: row["accuracy"]))  # evenly by rank: the box stays where it was
    return rows


def _thinned(rows: Rows) -> Rows:
    """At most so many rows, evenly taken, the first and the last among them."""
    if len(rows) <= _POINTS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, _POINTS).round().astype(int)]


def _dealt(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """Who had how many samples of which class, in the first seed."""
    tables = [run.provenance for run in runs if run.provenance is not None]
    if not tables:
        return
    found = max(tables, key=lambda each: len(each["table"]))
    table, labels = found["table"], found["labels"]  # (learners, classes)
    rows = [
        {"learner": who, "class": labels[c], "samples": int(table[who, c])}
        for who, c in product(range(min(len(table), _LEARNERS)), range(min(table.shape[1], _CLASSES)))
    ]
    cut = table.shape[0] > _LEARNERS or table.shape[1] > _CLASSES
    more = f" There are {table.shape[0]} learners and {table.shape[1]} classes; the first are shown." if cut else ""
    text = f"{found['data']} dealt out by {found['dealt']}, in the first seed; {found['case']}.{more}"
    yield Section("Samples of each class", text=text, figure=charts.partition(rows), name=f"{prefix}partition")


def _inner(runs: Sequence[ReportedRun], said: str, prefix: str) -> Iterator[Section]:
    """What training looked like from within: terms of the loss, and the mutual-information bound."""
    rows: Rows = []
    names = [run.label for run in runs]
    for run in runs:
        for name in (name for name in run.metrics.names if name.startswith("loss.")):
            term = name.removeprefix("loss.")
            for row in _thinned(run.metrics.curve(name)):
                rows.append({"method": run.label, "term": term, "round": row["round"], "value": row[name]})
    used = {(row["method"], row["term"]) for row in rows if row["value"]}
    rows = [row for row in rows if (row["method"], row["term"]) in used]  # a term that is always 0 says nothing
    if rows:
        text = f"Before weighting, the mean over seeds and the learners that have the term.{said}"
        yield Section("Terms of the loss", text=text, figure=charts.losses(rows, names), name=f"{prefix}losses")
    if bound := _curves(runs, "mutual_information"):
        text = (
            "A lower bound on what learners' representations say of each other, from their observations; "
            f"below 0 it says nothing. {_band(runs)}{said}"
        )
        chart = charts.bound(bound, names)
        yield Section("Mutual information", text=text, figure=chart, name=f"{prefix}mutual-information")


def _time(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    rows = [
        {"method": run.label, "phase": phase, "seconds": run.summary["seconds"].get(phase) or 0.0}
        for run, phase in product((run for run in runs if run.summary["seconds"]), PHASES)
    ]
    if rows:
        text = "Wall-clock time of all seeds together."
        yield Section("Time by phase", text=text, figure=charts.phases(rows), name=f"{prefix}time")


def _again(runs: Sequence[ReportedRun], prefix: str) -> Section:
    texts = {run.folder: run.config for run in runs if run.config}
    text = "Each of these files alone repeats its run: save it, and give it to consilience run."
    details = [(f"{folder / 'config.toml'}", config) for folder, config in texts.items()]
    return Section("Reproduce these runs", text=text if details else "", details=details, name=f"{prefix}again")
