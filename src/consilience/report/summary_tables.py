"""The tables of a page about runs: one row per run, and one per group of learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from consilience.presentation.gains import Gain, gains
from consilience.presentation.score_words import in_words_of, metric_headings, metric_of
from consilience.presentation.tables import (
    CAPTION,
    GAIN_COLUMNS,
    OPTIONAL_METRICS,
    best_row,
    format_bytes,
    format_count,
    format_optional,
    gain_captions,
    meanings,
    optional_metrics,
    privacy_captions,
)
from consilience.report.metrics import Rows
from consilience.report.runs import ReportedRun
from consilience.report.section import Section

PROBES = {"linear": "linear probe", "scaled": "scaled linear probe", "knn": "kNN"}
OPTIONAL_NAMES = {key: heading.replace("\n", " ") for key, (heading, _) in OPTIONAL_METRICS.items()}
_NO_VALUE = {"mean": None, "std_seeds": None}


def summary_sections(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """The table of runs, and that of groups of learners if there are several."""
    yield _summary(runs, prefix)
    if groups := _group_rows(runs):
        yield Section("By group of learners", table=groups, name=f"{prefix}groups")


def _summary(runs: Sequence[ReportedRun], prefix: str) -> Section:
    """The table of runs; the most accurate is marked."""
    summaries = [run.summary for run in runs]
    gained = gains(summaries)
    rows = [
        _summary_row(run, gain if any(gained) else False, _probed(runs), optional_metrics(summaries))
        for run, gain in zip(runs, gained, strict=True)
    ]
    captions = in_words_of(metric_of(summaries), " ".join(gain_captions(summaries)))
    text = _caption(runs) + (f"\n\n{captions}" if any(gained) else "")
    text += "".join(f"\n\n{sentence}" for sentence in privacy_captions(summaries))
    return Section("Summary", table=rows, best=best_row(summaries), explanation=text, name=f"{prefix}summary")


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
    for probe, name in PROBES.items():
        if methods := [run.label for run in runs if not run.labeled and next(iter(_probe_results(run)), None) == probe]:
            of_runs = "" if len(methods) == len(runs) else f" of {', '.join(methods)}"
            words.append(f"Trained without labels: the accuracy{of_runs} is that of the {name}.")
    if public := sorted({float(run.summary.get("public_bytes") or 0) for run in runs} - {0.0}):
        words.append(
            f"The total includes the public set, {' or '.join(map(format_bytes, public))} before the first round."
        )
    summaries = [run.summary for run in runs]
    words += meanings(summaries, optional_metrics(summaries))
    return "\n\n".join([in_words_of(metric_of(summaries), CAPTION), *([" ".join(words)] if words else [])])


def _probed(runs: Sequence[ReportedRun]) -> list[str]:
    """The probes that any of the runs was tested with."""
    return [probe for probe in PROBES if any(probe in _probe_results(run) for run in runs)]


def _probe_results(run: ReportedRun) -> Mapping[str, Any]:
    """The last accuracies of a run's probes."""
    return run.summary.get("probes") or {}


def _summary_row(
    run: ReportedRun, gain: Gain | Literal[False] | None, probed: Sequence[str], more: Sequence[str]
) -> dict[str, Any]:
    """gain: False if the table has no columns for it."""
    s = run.summary
    total, headings = s["seconds"].get("total"), metric_headings(metric_of([s]))
    return {
        "method": run.label + ("" if s["finished"] else " (unfinished)"),
        headings["accuracy"]: _with_spread(s["accuracy"]),
        **({} if gain is False else {which: format_count(gain, which) for which in GAIN_COLUMNS}),
        "total": format_bytes(s["bytes_total"]),
        headings["accuracy_own"]: _tenths(s["accuracy_own"]["mean"]),
        "spread across learners": _tenths(s["accuracy"]["std_learners"]),
        **{OPTIONAL_NAMES[key]: format_optional(s, key) for key in more},
        **{PROBES[probe]: _with_spread(_probe_results(run).get(probe, _NO_VALUE)) for probe in probed},
        "upload per round": format_bytes(s["bytes"]["up"]),
        "download per round": format_bytes(s["bytes"]["down"]),
        "time": "–" if total is None else f"{total:.1f} s",
    }


def _group_rows(runs: Sequence[ReportedRun]) -> Rows:
    names = dict.fromkeys(name for run in runs for name in run.summary["groups"])
    return [
        {
            "learners": Path(name).name if name == group["model"] else name,
            "model": Path(group["model"]).name,
            "method": run.label,
            metric_headings(metric_of([run.summary]))["accuracy"]: _with_spread(group["accuracy"]),
            metric_headings(metric_of([run.summary]))["accuracy_own"]: _tenths(group["accuracy_own"]["mean"]),
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
