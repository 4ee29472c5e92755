"""The beginning of a page about runs: what they say in sentences, what accuracy costs, and who gains and who loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from consilience.presentation import story_charts
from consilience.presentation.gains import ALONE, CENTRALIZED, MARGIN, Gain, gains, is_control
from consilience.presentation.message import Message, message, page_title
from consilience.presentation.method_looks import look_order, spoken_name
from consilience.presentation.scatter_charts import frontier
from consilience.presentation.score_words import metric_of
from consilience.report.runs import FoundRuns, ReportedRun
from consilience.report.section import Section

_QUESTIONS = ("Did it help?", "Whom did it help?", "At what cost?")
_MAX_NAMED = 10  # points of a chart with names beside them
_SAME_COST = 1.02  # ratio of bytes up to which runs cost the same
_MAX_MARKS = 200  # of a method's learners
_REFERENCES = (ALONE, CENTRALIZED)
_BYTES = "bytes of the federation, both ways"


def report_title(found: FoundRuns) -> str:
    """What the runs of a page compare."""
    return page_title([run.summary for run in found.runs])


def headline_section(task: str, extent: str, runs: Sequence[ReportedRun], prefix: str) -> Section:
    """What the runs of a task say, in sentences. extent: how many runs, rounds and seeds."""
    said = message([_labeled(run) for run in runs])
    return Section(
        f"{task}: {extent}",
        lead=" ".join(filter(None, [said.headline, said.own])) if said else "",
        answers=_answers(said),
        notes=said.warnings if said else (),
        name=f"{prefix}task",
        level=1,
    )


def cost_section(runs: Sequence[ReportedRun], prefix: str) -> Section | None:
    """Final accuracy against bytes; None if there are not two runs that differ in bytes."""
    runs = [run for run in runs if not is_control(run.summary)]
    rows = [_cost_row(run) for run in runs if run.summary["accuracy"]["mean"] is not None]
    sent = [row["bytes"] for row in rows if not row["reference"]]
    if len(sent) < 2 or max(sent) <= _SAME_COST * min(sent):
        return None
    text, metric = "After the last round; the top left is best.", metric_of([run.summary for run in runs])
    if len(rows) > _MAX_NAMED:
        known = [_cost_row(run) for run in runs if run.summary["method"] != CENTRALIZED]
        chart = frontier([row | {_BYTES: row["bytes"]} for row in known], _BYTES, "accuracy", "method")
    else:
        text += " Vertical lines: one standard deviation over seeds." * any(row["spread"] for row in rows)
        chart = story_charts.accuracy_against_bytes(rows, look_order([run.label for run in runs]), metric.name)
    return Section(f"{metric.title} against bytes", text, figure=chart, name=f"{prefix}cost")


def gains_section(runs: Sequence[ReportedRun], drawn: Sequence[ReportedRun], note: str, prefix: str) -> Section | None:
    """What each learner gains over learning alone; None if that is not among the runs. note: if not all are drawn."""
    found = dict(zip((run.label for run in runs), gains([run.summary for run in runs]), strict=True))
    rows = [row for run in drawn if (gain := found[run.label]) is not None for row in _points(run.label, gain)]
    if not rows:
        return None
    score = metric_of([run.summary for run in runs]).name
    text = (
        f"A mark per learner and seed: its own {score}, minus that of the same learner alone. "
        f"Helped and harmed: by more than {MARGIN:g} point. Numbers: the mean.{_control_note(drawn)}{note}"
    )
    chart = story_charts.gains_by_method(rows)
    return Section("Who gains, who loses", text, figure=chart, name=f"{prefix}gains")


def _control_note(drawn: Sequence[ReportedRun]) -> str:
    """Which of the drawn runs is the control."""
    labels = [run.label for run in drawn if is_control(run.summary)]
    return "".join(f" {label}: the control, alone with another order of batches." for label in labels)


def _labeled(run: ReportedRun) -> dict[str, Any]:
    """The summary of a run with its label, which distinguishes it from others of its method."""
    return {**run.summary, "label": run.label}


def _answers(said: Message | None) -> list[tuple[str, str]]:
    """The answers to the three questions that the runs have numbers for."""
    if said is None:
        return []
    return [(q, a) for q, a in zip(_QUESTIONS, (said.helped, said.whom, said.cost), strict=True) if a]


def _cost_row(run: ReportedRun) -> dict[str, Any]:
    s = run.summary
    reference = f"{spoken_name(run.label)}: {s['accuracy']['mean']:.1f} %" if s["method"] in _REFERENCES else ""
    return {
        "method": run.label,
        "bytes": float(s["bytes_total"]),
        "accuracy": s["accuracy"]["mean"],
        "spread": s["accuracy"]["std_seeds"],
        "reference": reference if s["accuracy"]["mean"] is not None else "",
    }


def _points(label: str, gain: Gain) -> list[Mapping[str, Any]]:
    ranked = sorted(gain.points.items(), key=lambda each: each[1])
    if len(ranked) > _MAX_MARKS:  # evenly by rank
        ranked = [ranked[i] for i in np.linspace(0, len(ranked) - 1, _MAX_MARKS).round().astype(int)]
    return [{"method": label, "seed": seed, "learner": who, "gain": points} for (seed, who), points in ranked]
