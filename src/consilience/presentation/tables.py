"""Results and methods as tables, for a terminal or as plain text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from consilience.kinds.metric import ACCURACY
from consilience.presentation.gains import CENTRALIZED, Gain, Summary, gains, is_control
from consilience.presentation.ranking import RANKINGS, rank, ranked_by
from consilience.presentation.score_words import in_words_of, metric_headings, metric_of

OPTIONAL_METRICS = {
    "accuracy_validation": (
        "validation\n%",
        "Validation: accuracy on the samples that each learner held out, after the last round.",
    ),
    "ensemble": ("ensemble", "Ensemble: accuracy of the mean of all learners' logits."),
    "heads": ("own\nheads", "Own heads: accuracy of the mean of the logits of devices' own heads."),
    "top5": ("top-5\n%", "Top-5: accuracy of the five most likely classes."),
    "f1": ("macro\nF1 %", "Macro F1: mean over classes of the harmonic mean of precision and recall."),
    "auc": ("AUC\n%", "AUC: area under the ROC curve, one class against the rest, mean over classes."),
    "rmse": ("RMSE", "RMSE: root of the mean squared error, in the unit of the target; less is better."),
    "dependence": ("dcor", "Dcor: distance correlation of the inputs and the output of the watched layer."),
}
"""Metrics that only some runs record: the heading of the column, and its meaning."""

_SPREAD = "spread\nacross\nlearners"
_UPLOAD, _DOWNLOAD = "upload\nper\nround", "download\nper\nround"

CAPTION = (
    "Accuracy: the common answer on the whole test set after the last round, mean over learners, ± standard deviation "
    "over seeds; spread across learners: their standard deviation. Own accuracy: a learner's own answer on data like "
    "its own: test classes weighted as in its data, and shifted like it. Upload and download: bytes per learner; "
    "total: bytes of the federation, both ways."
)

GAIN_COLUMNS: tuple[Literal["helped"], Literal["harmed"]] = ("helped", "harmed")
GAIN_CAPTION = (
    "Helped, harmed: learners, those of every seed counted, whose own accuracy is more than one point higher or lower "
    "than that of the same learner alone with the same seed."
)

CONTROL_CAPTION = (
    "{label}: the control. The same learners alone, with the same data and first weights and another order of batches; "
    "as many learners are helped and harmed by chance."
)

SWEEP_CAPTION = (
    "Accuracy on the test set after the last round: mean over learners, ± standard deviation over seeds, which are the "
    "same for every setting."
)


def comparison_table(summaries: Sequence[Summary], width: int = 200) -> Table:
    """One row per method: its accuracy, whom it helps and its cost; where `width` has no room, with fewer columns."""
    gained = any(gains(summaries))
    order: list[tuple[str, ...]] = [("time",), *([("spread",)] if gained else []), ("total",), GAIN_COLUMNS]
    console, left_out = Console(width=1000), list[str]()
    table = _comparison_table(summaries, left_out)
    for columns in order:
        if console.measure(table).maximum > width:
            left_out += columns
            table = _comparison_table(summaries, left_out)
    return table


def _comparison_table(summaries: Sequence[Summary], left_out: Sequence[str]) -> Table:
    """left_out: columns that have no room."""
    gained, more = gains(summaries), optional_metrics(summaries)
    table = new_table(_title(summaries), _caption(summaries, more, any(gained)))
    table.add_column("method", min_width=12)
    best = best_row(summaries)
    rows = [_comparison_cells(s, gain, any(gained)) for s, gain in zip(summaries, gained, strict=True)]
    optional = [key for key in (*more, "knn") if any(rows[i][key][1] != "–" for i in range(len(rows)))]
    hidden = {*OPTIONAL_METRICS, "knn", *left_out} - set(optional)
    keys = [key for key in rows[0] if key not in hidden]
    for key in keys:
        table.add_column(rows[0][key][0], justify="right", no_wrap=True)
    for i, (s, cells) in enumerate(zip(summaries, rows, strict=True)):
        name = method_label(s["method"], s["settings"]) + " *" * (i == best)
        table.add_row(name, *(cells[key][1] for key in keys), style="bold" if i == best else "")
    return table


def _comparison_cells(s: Summary, gain: Gain | None, gained: bool) -> dict[str, tuple[str, str]]:
    """The columns of a run: heading and cell by key."""
    headings = narrow_headings([s])
    counts: dict[str, tuple[str, str]] = {which: (which, format_count(gain, which)) for which in GAIN_COLUMNS}
    return {
        "accuracy": (headings["accuracy"], _with_spread(s["accuracy"])),
        "spread": (_SPREAD, _percent(s["accuracy"]["std_learners"])),
        "own": (headings["accuracy_own"], _percent(s["accuracy_own"]["mean"])),
        **(counts if gained else {}),
        **{key: (heading, format_optional(s, key)) for key, (heading, _) in OPTIONAL_METRICS.items()},
        "knn": ("kNN", _percent(s.get("probes", {}).get("knn", {}).get("mean"))),
        "up": (_UPLOAD, format_bytes(s["bytes"]["up"])),
        "down": (_DOWNLOAD, format_bytes(s["bytes"]["down"])),
        "total": ("total", format_bytes(s["bytes_total"])),
        "time": ("time", f"{s['seconds']['total']:.1f} s"),
    }


def narrow_headings(summaries: Sequence[Summary]) -> dict[str, str]:
    """The headings of the two scores, a word per line."""
    return {key: heading.replace(" ", "\n") for key, heading in metric_headings(metric_of(summaries)).items()}


def best_row(summaries: Sequence[Summary]) -> int | None:
    """The place of the most accurate run without `centralized` and the control; None if there is nothing to compare.

    Of the settings of a sweep, that of the first in rank.
    """
    metric = ranked_by(summaries) if all(s.get("set") for s in summaries) else "accuracy"
    methods = {i: s for i, s in enumerate(summaries) if s["method"] != CENTRALIZED and not is_control(s)}
    known = {i: mean for i, s in methods.items() if (mean := _mean(s, metric)) is not None}
    return max(known, key=lambda i: float(known[i])) if len(known) > 1 else None


def format_count(gain: Gain | None, which: Literal["helped", "harmed"]) -> str:
    """How many learners are helped or harmed, of how many: 4/5."""
    return "–" if gain is None else f"{getattr(gain, which)}/{gain.learners}"


def _title(summaries: Sequence[Summary]) -> str:
    first = summaries[0]
    return (
        f"{Path(first['data']).name}, {_model_names(first['model'])}: "
        f"{plural(max(s['learners'] for s in summaries), 'learner')}, {plural(first['rounds'], 'round')}, "
        f"{plural(first['seeds'], 'seed')}"
    )


def _caption(summaries: Sequence[Summary], more: Sequence[str], gained: bool) -> str:
    probed = [
        method_label(s["method"], s["settings"])
        for s in summaries
        if s.get("accuracy_source", "classifier") != "classifier"
    ]
    sentences = [CAPTION]
    if probed:
        methods = "all" if len(probed) == len(summaries) else ", ".join(probed)
        sentences.append(f"Trained without labels ({methods}): accuracy of a probe.")
    if best_row(summaries) is not None:
        sentences.append("*: most accurate.")
    sentences += gain_captions(summaries) if gained else []
    sentences += privacy_captions(summaries)
    return " ".join([*(in_words_of(metric_of(summaries), each) for each in sentences), *meanings(summaries, more)])


def meanings(summaries: Sequence[Summary], more: Sequence[str]) -> list[str]:
    """What the score is where it is not accuracy, and what the optional metrics are."""
    metric = metric_of(summaries)
    score = [] if metric == ACCURACY else [f"{metric.name}: {metric.meaning}."]
    return [*score, *(in_words_of(metric, OPTIONAL_METRICS[key][1]) for key in more)]


def gain_captions(summaries: Sequence[Summary]) -> list[str]:
    """What helped and harmed mean, and which run is the control."""
    controls = [method_label(s["method"], s["settings"]) for s in summaries if is_control(s)]
    return [GAIN_CAPTION, *(CONTROL_CAPTION.format(label=label) for label in controls)]


def privacy_captions(summaries: Sequence[Summary]) -> list[str]:
    """What uploads of private runs have revealed at most, and between which data sets nobody can tell."""
    told = {
        f"Private ({p['private']}): epsilon {p['epsilon']:.3g} at delta {p['delta']:.0e} between {p['neighboring']}"
        + "".join(
            f"; {own['samples']:,} samples have an epsilon of {own['epsilon']:g} of their own, and spent "
            f"{own['spent']:.3g}"
            for own in p.get("sample_epsilons", ())
        )
        + "."
        for p in (s.get("privacy") for s in summaries)
        if p
    }
    return sorted(told)


def optional_metrics(summaries: Sequence[Summary]) -> list[str]:
    """The optional metrics that at least one of these runs recorded."""
    return [key for key in OPTIONAL_METRICS if any(_mean(s, key) is not None for s in summaries)]


def format_optional(summary: Summary, key: str) -> str:
    """An optional metric of one run: in percent, a distance correlation from 0 to 1, or in the unit of the target."""
    mean = _mean(summary, key)
    if key == "rmse" and mean is not None:
        return f"{mean:.4g}"
    return f"{mean:.2f}" if key == "dependence" and mean is not None else _percent(mean)


def _mean(summary: Summary, key: str) -> float | None:
    mean: float | None = (summary.get(key) or {}).get("mean")
    return mean


def groups_table(summaries: Sequence[Summary]) -> Table:
    """One row per group of learners and method: the accuracy of these learners, and their upload and download."""
    table = new_table("By group of learners")
    for heading in ("learners", "model", "method"):
        table.add_column(heading)
    for heading in (*narrow_headings(summaries).values(), _UPLOAD, _DOWNLOAD):
        table.add_column(heading, justify="right", no_wrap=True)
    with_groups = [s for s in summaries if s.get("groups")]
    repeated = len({s["method"] for s in with_groups}) < len(with_groups)  # then their settings tell them apart
    for name in dict.fromkeys(name for s in with_groups for name in s["groups"]):
        for i, s in enumerate(s for s in with_groups if name in s["groups"]):
            group = s["groups"][name]
            table.add_row(
                *((name, Path(group["model"]).name) if i == 0 else ("", "")),
                method_label(s["method"], s["settings"] if repeated else {}),
                _with_spread(group["accuracy"]),
                _percent(group["accuracy_own"]["mean"]),
                format_bytes(group["bytes"]["up"]),
                format_bytes(group["bytes"]["down"]),
            )
    return table


def sweep_table(outcomes: Sequence[Summary], most: int = 20) -> Table:
    """One row per setting, the best first; settings that diverged last."""
    first = outcomes[0]
    ranked = rank(outcomes)
    more = [key for key in optional_metrics(outcomes) if key in RANKINGS]
    table = new_table(_sweep_title(outcomes), _sweep_caption(outcomes, more, len(ranked) - most))
    for key in first["set"]:
        table.add_column(key, justify="right")
    metrics = (OPTIONAL_METRICS[key][0] for key in more)
    score, own = narrow_headings(outcomes).values()
    for heading in (score, _SPREAD, own, *metrics, _UPLOAD, _DOWNLOAD, ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, s in enumerate(ranked[:most]):
        table.add_row(
            *(f"{value}" for value in s["set"].values()),
            _with_spread(s["accuracy"]),
            _percent(s["accuracy"]["std_learners"]),
            _percent(s["accuracy_own"]["mean"]),
            *(format_optional(s, key) for key in more),
            format_bytes(s["bytes"]["up"]),
            format_bytes(s["bytes"]["down"]),
            "diverged" if s["diverged"] else "best" if place == 0 else "",
            style="bold" if place == 0 else "",
        )
    return table


def _sweep_title(outcomes: Sequence[Summary]) -> str:
    first = outcomes[0]
    swept = {key.removeprefix("method.").replace("name", "method") for key in first["set"]}
    fixed = [first[key] for key in ("method", "data", "model") if key not in swept]
    counts = [plural(first[f"{noun}s"], noun) for noun in ("learner", "round", "seed") if f"{noun}s" not in swept]
    return f"{', '.join(fixed)}: {', '.join([plural(len(outcomes), 'setting'), *counts])}"


def _sweep_caption(outcomes: Sequence[Summary], more: Sequence[str], hidden: int) -> str:
    sentences = [SWEEP_CAPTION]
    metric = ranked_by(outcomes)
    chosen = "" if metric == "accuracy_validation" else ", which is too good for the best one: see `validation`"
    sentences.append(f"Settings are ranked by {RANKINGS[metric]}{chosen}.")
    if hidden > 0:
        sentences.append(f"{hidden} more are in the tidy file.")
    said = [in_words_of(metric_of(outcomes), each) for each in sentences]
    return " ".join([said[0], *meanings(outcomes, more), *said[1:]])


def _model_names(names: str) -> str:
    """The names of models without the folders of their files."""
    return ", ".join(Path(name).name for name in names.split(","))


def rows_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Table:
    """A table of rows with the same keys: text is left-aligned, numbers right-aligned, missing values are empty."""
    table = new_table(title)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    for key in keys:
        text = all(isinstance(row.get(key), str | None) and not _looks_like_a_number(row.get(key)) for row in rows)
        table.add_column(key, justify="left" if text else "right")
    for row in rows:
        cells = [row.get(key) for key in keys]
        table.add_row(*("" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells))
    return table


def _looks_like_a_number(value: Any) -> bool:
    return isinstance(value, str) and value[:1].isdigit()


def method_label(method: str, settings: Mapping[str, Any]) -> str:
    """The name of a method and the settings that were given: `fedavg every=2`."""
    return " ".join([method, *(f"{k}={v}" for k, v in settings.items())])


def new_table(title: str | None = None, caption: str | None = None) -> Table:
    """An empty table in the common style: narrow enough for a terminal of 80 columns."""
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )


def format_bytes(count: float) -> str:
    """A number of bytes with its unit: 0, 812 B, 3.12 kB, 9.89 MB."""
    if count == 0:
        return "0"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def _with_spread(accuracy: Mapping[str, Any]) -> str:
    """A mean accuracy and its standard deviation over seeds."""
    spread = accuracy["std_seeds"]
    return _percent(accuracy["mean"]) + ("" if spread is None else f" ±{spread:4.1f}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def plural(number: int, noun: str) -> str:
    """A number with its noun: 1 round, 5 rounds."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def table_text(table: Table) -> str:
    """The table as text without colors, up to 200 columns wide."""
    stream = io.StringIO()
    Console(file=stream, width=200, no_color=True, markup=False).print(table)
    return stream.getvalue()
