"""Reads run folders: the summary of each run, and its metrics, summed over learners as they are read.

A run may be unfinished or damaged: the page shows what can be read, and notes say what is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.config.config import Config
from consilience.errors import CheckpointError, ConsilienceError
from consilience.kinds import ACCURACY, kind_named
from consilience.methods import build_method
from consilience.presentation.tables import OPTIONAL_METRICS, method_label, plural
from consilience.report.metrics import RunMetrics
from consilience.report.reproduction_folder import RESUME, is_reproduction, reproduction_cells
from consilience.simulation.compare import baseline_folder, read_comparison, run_folders
from consilience.simulation.records.provenance import describe_shifts
from consilience.simulation.records.run_folder import PROVENANCE, RunFolder, kind_of, resume_command, wrong_folder_error
from consilience.simulation.records.run_lock import read_owner
from consilience.simulation.sweep_plan import read_sweep

_UNKNOWN = "unknown settings"


@dataclass(frozen=True)
class ReportedRun:
    """One method under one setting: its summary and metrics, so far if it is unfinished."""

    label: str
    task: str
    folder: Path
    summary: Mapping[str, Any]
    metrics: RunMetrics
    provenance: Mapping[str, Any] | None = None
    config: str = ""
    labeled: bool = True
    """Whether it trains classifiers; else its accuracy is that of the first probe."""
    baseline: Path | None = None
    """The folder of the run that it is compared with, in a comparison with a baseline."""


@dataclass(frozen=True)
class FoundRuns:
    """The runs in some folders, and notes about what is missing."""

    runs: list[ReportedRun]
    notes: list[str]


def read_runs(folders: Sequence[Path]) -> FoundRuns:
    """The runs in folders of runs, comparisons, sweeps and reproductions, with distinct labels within a task."""
    runs: list[ReportedRun] = []
    notes: list[str] = []
    inside: dict[Path, RunFolder] = {}  # a run that is given twice counts once
    baselines: dict[Path, Path | None] = {}
    for folder in dict.fromkeys(folders):
        there = list(_run_folders(folder, notes))
        if not there:
            hint = RESUME if is_reproduction(folder) else f"resume with: {resume_command(folder)}"
            raise CheckpointError(f"{folder} has no run yet; {hint}")
        inside |= {run.path.resolve(): run for run in there if run.path.resolve() not in inside}
        baselines |= dict.fromkeys((run.path for run in there), _baseline(folder))
    for run in inside.values():
        runs += [replace(each, baseline=baselines[run.path]) for each in _read(run, notes)]
    labels = [(run.task, run.label) for run in runs]
    return FoundRuns(
        [
            replace(run, label=f"{run.label} ({_distinct_name(run.folder)})")
            if labels.count((run.task, run.label)) > 1
            else run
            for run in runs
        ],
        notes,
    )


def _distinct_name(folder: Path) -> str:
    """The folder of a run, or the name of a reproduction's cell, which distinguishes runs with the same label."""
    return folder.name if is_reproduction(folder.parent.parent) else str(folder)


def _run_folders(folder: Path, notes: list[str]) -> Iterator[RunFolder]:
    """The run folders in a folder; if its plan cannot be read, those that exist."""
    kind = kind_of(folder)
    if kind is None and is_reproduction(folder):
        yield from reproduction_cells(folder, notes)
        return
    if kind is None:
        files = "config.toml, comparison.toml or sweep.toml, nor a folder named cells"
        raise wrong_folder_error("run, comparison, sweep or reproduction", files, folder)
    if kind[0] == "run":
        yield RunFolder(folder)
        return
    there = [RunFolder(path.parent) for path in sorted(folder.glob("*/config.toml"))]
    try:
        if kind[0] == "comparison":
            there, wanted = run_folders(folder), len(read_comparison(folder).methods)
        else:
            wanted = len(read_sweep(folder).parts)
    except ConsilienceError as error:
        notes.append(f"{error}. The runs that exist in the folder are shown.")
        wanted = 0
    if len(there) < wanted:
        resume = resume_command(folder)
        notes.append(f"{folder}: {len(there)} of {wanted} runs have started; resume with: {resume}")
    yield from there


def _baseline(folder: Path) -> Path | None:
    """The folder of the run that others of a comparison are compared with; None without one, or a damaged plan."""
    try:
        return baseline_folder(folder)
    except ConsilienceError:  # of a damaged plan; there is a note about it
        return None


def _read(run: RunFolder, notes: list[str]) -> list[ReportedRun]:
    """The run of a run folder, or one run per variant."""
    configs, changes, text = _configs(run, notes)
    metrics = _metrics(run, configs, notes)
    results = _results(run, len(configs), notes)
    provenance = _provenance(run, notes)
    found = []
    for i, (own, result) in enumerate(zip(configs, results, strict=True)):
        summary = _by_seed(result or _summary_so_far(run, own, metrics[i]) | {"set": changes[i]}, own, metrics[i])
        name = method_label(summary["method"], summary.get("set") or summary["settings"]).replace(" method.", " ")
        found.append(ReportedRun(name, _task(own), run.path, summary, metrics[i], provenance, text, _labeled(own)))
    _note_missing(run, configs[0], found, notes)
    return found


def _configs(run: RunFolder, notes: list[str]) -> tuple[Sequence[Config | None], Sequence[Mapping[str, Any]], str]:
    """The settings of each variant, the swept settings of each, and the text of `config.toml`."""
    try:
        config, text = run.config, (run.path / "config.toml").read_text(encoding="utf-8")
        configs = [config.variant(i) for i in range(len(config.variants))]
        return configs or [config], config.variants or [{}], text
    except (ConsilienceError, OSError) as error:
        notes.append(f"{error}. The settings of the run are not known.")
        return [None], [{}], ""


def _task(config: Config | None) -> str:
    """Data, what is predicted, models, learners and partition of a run; runs with the same text can be compared."""
    if config is None:
        return _UNKNOWN
    words = [
        config.data.source + (f" ({config.data.label})" if config.data.label else ""),
        ", ".join(dict.fromkeys(config.learner_models)),
        f"{config.federation.learners} learners",
        config.federation.partition,
    ]
    shift = [] if (shifts := describe_shifts(config)) == "none" else [shifts]
    return ", ".join([*words, *shift, *([f"{config.data.train} samples"] if config.data.train else [])])


def _labeled(config: Config | None) -> bool:
    """Whether every role of a run's method trains with labels; True if it is not known."""
    try:
        roles = build_method(config.method.name, config.method.settings).roles if config else {}
    except ConsilienceError:
        return True
    return all(role.objective.labeled for role in roles.values())


def _metrics(run: RunFolder, configs: Sequence[Config | None], notes: list[str]) -> list[RunMetrics]:
    """The metrics of each variant."""
    found = [RunMetrics(group_of=_group_of(config)) for config in configs]
    most = configs[0].training.rounds if configs[0] else math.inf
    damaged = 0
    try:
        for text in run.lines():
            try:
                line = json.loads(text)
                place = line.pop("round"), line.pop("seed"), line.pop("learner")
                if not all(isinstance(number, int) and number >= 0 for number in place) or place[0] > most:
                    raise ValueError("round, seed or learner is out of range")
                found[range(len(found))[line.pop("variant", 0)]].add(*place, dict(_flat(line)))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
                damaged += 1
    except ConsilienceError as error:
        notes.append(f"{error}. This run has no curves.")
    if damaged:
        notes.append(f"{run.metrics}: {plural(damaged, 'damaged line')} left out.")
    return found


def _group_of(config: Config | None) -> dict[int, str]:
    """The group of each learner, if there are several groups."""
    return {who: name for name, members in (config.learners_by_group() if config else {}).items() for who in members}


def _flat(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a line by their dotted names."""
    for key, value in line.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{prefix}{key}", float(value)


def _results(run: RunFolder, variants: int, notes: list[str]) -> Sequence[Mapping[str, Any] | None]:
    """The summary of each variant in `result.json`; None if there is none or it is damaged."""
    try:
        result = run.result
        if result is None:
            return [None] * variants
        each = result.get("variants", [result])
        if not isinstance(each, list) or len(each) != variants or not all(map(_is_valid, each)):
            raise CheckpointError(f"{run.path / 'result.json'} is damaged: numbers are missing")
    except (ConsilienceError, OSError, RecursionError) as error:
        notes.append(f"{error}. The summary is computed from its metrics.")
        return [None] * variants
    return [{**one, "finished": bool(result["finished"])} for one in each]


def _is_valid(summary: Any) -> bool:
    """Whether a summary has every field that a page shows."""
    try:
        numbers = [summary["accuracy"][key] for key in ("mean", "std_seeds", "std_learners")]
        numbers += [summary["accuracy_own"]["mean"], summary["bytes_total"], *summary["seconds"].values()]
        numbers += [summary["bytes"]["up"], summary["bytes"]["down"], summary["seconds"]["total"], summary["seeds"]]
        for group in summary["groups"].values():
            numbers += [group["accuracy"]["mean"], group["accuracy"]["std_seeds"], group["accuracy_own"]["mean"]]
            numbers += [group["bytes"]["up"], group["bytes"]["down"]]
        numbers += [summary["rounds"], summary.get("public_bytes")]
        more = [
            *summary.get("probes", {}).values(),
            *(summary[key] for key in OPTIONAL_METRICS if summary.get(key) is not None),
        ]
        numbers += [each[key] for each in more for key in ("mean", "std_seeds")]
        words = [summary["method"], *(group["model"] for group in summary["groups"].values())]
        tables = [summary["settings"], summary.get("set", {})]
        typed = all(isinstance(word, str) for word in words) and all(isinstance(each, dict) for each in tables)
        return (
            typed
            and isinstance(summary["diverged"], list)
            and all(number is None or math.isfinite(number) for number in numbers)
        )
    except (KeyError, TypeError, AttributeError, OverflowError):
        return False


def _summary_so_far(run: RunFolder, config: Config | None, metrics: RunMetrics) -> dict[str, Any]:
    """The summary of a run without a result, from its metrics; its time is not known."""
    by_seed = [[value for (at, _), value in metrics.final.items() if at == seed] for seed in metrics.seeds]
    spread = [float(np.std(values)) for values in by_seed if values]
    rows = {way: metrics.curve(f"bytes.{way}") for way in ("up", "down")}
    probes = {probe: _last(metrics, f"accuracy_{probe}") for probe in ("linear", "scaled", "knn")}
    return {
        "method": config.method.label if config else run.path.name,
        "settings": config.method.settings if config else {},
        "rounds": metrics.rounds,
        "seeds": len(metrics.seeds),
        "metric": _metric_key(run),
        "accuracy": {**_last(metrics, "accuracy"), "std_learners": float(np.mean(spread)) if spread else None},
        "accuracy_own": _last(metrics, "accuracy_own"),
        "probes": {probe: found for probe, found in probes.items() if found["mean"] is not None},
        "ensemble": _last(metrics, "accuracy_ensemble"),
        "heads": _last(metrics, "accuracy_heads"),
        **{name: _last(metrics, name) for name in OPTIONAL_METRICS if name not in ("ensemble", "heads")},
        "bytes": {way: float(np.mean([r[f"bytes.{way}"] for r in rows[way]] or [0.0])) for way in rows},
        "bytes_total": metrics.cumulative_bytes().get(metrics.rounds, 0.0),
        "seconds": {},
        "groups": {},
        "finished": config is not None and metrics.rounds == config.training.rounds,
    }


def _by_seed(summary: Mapping[str, Any], config: Config | None, metrics: RunMetrics) -> dict[str, Any]:
    """The summary with what a comparison by seed and learner needs, from the settings and the metrics of the run."""
    if config is None or not metrics.seen:
        return dict(summary)
    finals = metrics.by_learner(metrics.final)
    known = [[value for value in row if value is not None] for row in finals]
    means = [float(np.mean(row)) if row else None for row in known]
    return {
        **summary,
        "data": config.data.source,
        "learners": len(finals[0]),
        "seed": metrics.seeds[0],
        "accuracy": {**summary["accuracy"], "by_seed": means},
        "accuracy_own": {**summary["accuracy_own"], "by_learner": metrics.by_learner(metrics.final_local)},
    }


def _last(metrics: RunMetrics, name: str) -> dict[str, float | None]:
    """The last value of a metric, and its standard deviation over seeds."""
    last = (metrics.curve(name) or [{name: None, "low": None}])[-1]
    several = len(metrics.seeds) > 1 and last["low"] is not None
    return {"mean": last[name], "std_seeds": last[name] - last["low"] if several else None}


def _metric_key(run: RunFolder) -> str:
    """The score of a run without a result, as its data says; accuracy where that cannot be read."""
    try:
        found = json.loads((run.path / PROVENANCE).read_text(encoding="utf-8"))["data"]["target"]
        return kind_named(found["kind"]).metric.key
    except (ConsilienceError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return ACCURACY.key


def _provenance(run: RunFolder, notes: list[str]) -> Mapping[str, Any] | None:
    file = run.path / PROVENANCE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        first = found["class_counts"][min(found["class_counts"], key=int)]
        table = np.asarray(first, dtype=np.int64)  # (learners, classes)
        named = found["data"].get("groups") or found["data"]["labels"]
        names = [str(name) for name in named] or [str(c) for c in range(table.shape[-1])]
        if table.ndim != 2 or not table.size or len(names) != table.shape[1]:
            raise ValueError("its class counts are not a table of learners and classes")
        case = found["case"]
        said = (
            f"{case['description']}: case {case['figure']} of the nine kinds of heterogeneity"
            if case["figure"]
            else str(case["description"])
        )
        split = ", ".join(str(found[key]) for key in ("partition", "shift") if found[key] != "none")
        group = kind_named(found["data"].get("target", {"kind": "single-label"})["kind"]).group
        return {
            "table": table,
            "labels": names,
            "group": group,
            "case": said,
            "split": split,
            "data": str(found["data"]["name"]),
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        notes.append(f"{file} cannot be read ({why}). The split of the data is not shown.")
        return None


def _note_missing(run: RunFolder, config: Config | None, found: Sequence[ReportedRun], notes: list[str]) -> None:
    """Add notes about an unfinished run and about missing lines of its metrics."""
    metrics = [each.metrics for each in found]
    reached = max(each.rounds for each in metrics)
    if config is None:
        return
    owner, rounds = read_owner(run.path), f"{reached} of {config.training.rounds} rounds are finished"
    if owner is not None:
        notes.append(f"{run.path}: {rounds}; it is running ({owner}), so the page shows what there is so far")
        return
    if not found[0].summary["finished"]:
        notes.append(f"{run.path}: {rounds}; resume with: {resume_command(run.path)}")
    elif reached < config.training.rounds:
        notes.append(f"{run.metrics} ends with round {reached} of {config.training.rounds}; curves end there.")
    learners = {learner for each in metrics for _, _, learner in each.seen}
    wanted = len(metrics) * (reached + 1) * config.federation.seeds * len(learners)
    if gone := wanted - sum(len(each.seen) for each in metrics):
        notes.append(f"{run.metrics}: {plural(gone, 'line')} missing; means are over the others.")
    for text in dict.fromkeys(word for each in found for word in each.summary.get("diverged") or ()):
        notes.append(f"{run.path}: {text}")
