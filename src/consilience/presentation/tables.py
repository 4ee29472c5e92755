"""Results and methods as tables, for a terminal or as plain text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from consilience.presentation.ranking import ranked_by

Summary = Mapping[str, Any]

ALSO = {
    "ensemble": ("all\nasked", "All asked: by the mean of all learners' logits."),
    "heads": ("own\nheads", "Own heads: by the mean of the logits of devices' own heads."),
    "dependence": ("dcor", "Dcor: distance correlation of inputs and the layer watched."),
}
"""What is known of some runs only: the heading of its column, and what it means."""


def comparison(summaries: Sequence[Summary]) -> Table:
    """One row a method: what it reaches, and what it costs."""
    first = summaries[0]
    title = (
        f"{Path(first['data']).name}, {_models(first['model'])}: "
        f"{count(max(s['learners'] for s in summaries), 'learner')}, {count(first['rounds'], 'round')}, "
        f"{count(first['seeds'], 'seed')}"
    )
    probed = [
        label(s["method"], s["settings"]) for s in summaries if s.get("accuracy_source", "classifier") != "classifier"
    ]
    whose = "all" if len(probed) == len(summaries) else ", ".join(probed)
    caption = f"{CAPTION} Without labels ({whose}): what a probe tells." if probed else CAPTION
    more = also(summaries)
    table = plain_table(title, " ".join([caption, *(ALSO[key][1] for key in more)]))
    table.add_column("method", min_width=12)
    knn = ["kNN"] * any("knn" in s.get("probes", {}) for s in summaries)
    reached, cost = ("accuracy\n%", "± of\nlearners", "own\ndata"), ("up a\nround", "down a\nround", "total")
    timed = ["time"] * (len(more) + len(knn) <= 2)  # else there is no room for it in 80 columns
    for heading in (*reached, *(ALSO[key][0] for key in more), *knn, *cost, *timed):
        table.add_column(heading, justify="right", no_wrap=True)
    best = max((s["accuracy"]["mean"] or 0.0 for s in summaries if s["method"] != "centralized"), default=0.0)
    for s in summaries:
        mean, spread = s["accuracy"]["mean"], s["accuracy"]["std_seeds"]
        table.add_row(
            label(s["method"], s["settings"]),
            _number(mean) + ("" if spread is None else f" ±{spread:4.1f}"),
            _number(s["accuracy"]["std_learners"]),
            _number(s["accuracy_local"]["mean"]),
            *(told_also(s, key) for key in more),
            *(_number(s.get("probes", {}).get("knn", {}).get("mean")) for _ in knn),
            size(s["bytes"]["up"]),
            size(s["bytes"]["down"]),
            size(s["bytes_total"]),
            *(f"{s['seconds']['total']:.1f} s" for _ in timed),
            style="bold" if mean is not None and mean == best else "",
        )
    return table


def also(summaries: Sequence[Summary]) -> list[str]:
    """What is known of any of these runs, of what only some tell."""
    return [key for key in ALSO if any(_mean(s, key) is not None for s in summaries)]


def told_also(summary: Summary, key: str) -> str:
    """The same of one run, in percent or, of the distance correlation, as a share of 1."""
    mean = _mean(summary, key)
    return f"{mean:.2f}" if key == "dependence" and mean is not None else _number(mean)


def _mean(summary: Summary, key: str) -> float | None:
    mean: float | None = (summary.get(key) or {}).get("mean")
    return mean


def kinds_table(summaries: Sequence[Summary]) -> Table:
    """One row a kind of learners and a method: what those on their own terms reach, and what it costs them."""
    table = plain_table("By kind of learner")
    for heading in ("learners", "model", "method"):
        table.add_column(heading)
    for heading in ("accuracy\n%", "own\ndata", "up a\nround", "down a\nround"):
        table.add_column(heading, justify="right", no_wrap=True)
    told = [s for s in summaries if s.get("kinds")]
    twice = len({s["method"] for s in told}) < len(told)  # then settings tell them apart
    for name in dict.fromkeys(name for s in told for name in s["kinds"]):
        for i, s in enumerate(s for s in told if name in s["kinds"]):
            kind = s["kinds"][name]
            spread = kind["accuracy"]["std_seeds"]
            table.add_row(
                *((name, Path(kind["model"]).name) if i == 0 else ("", "")),
                label(s["method"], s["settings"] if twice else {}),
                _number(kind["accuracy"]["mean"]) + ("" if spread is None else f" ±{spread:4.1f}"),
                _number(kind["accuracy_local"]["mean"]),
                size(kind["bytes"]["up"]),
                size(kind["bytes"]["down"]),
            )
    return table


def sweep_table(outcomes: Sequence[Summary], most: int = 20) -> Table:
    """One row a setting, the best first; those in which something was no number last."""
    first = outcomes[0]
    swept = {key.removeprefix("method.").replace("name", "method") for key in first["set"]}
    about = [first[word] for word in ("method", "data", "model") if word not in swept]
    counts = [count(first[f"{noun}s"], noun) for noun in ("learner", "round", "seed") if f"{noun}s" not in swept]
    title = f"{', '.join(about)}: {', '.join([count(len(outcomes), 'setting'), *counts])}"
    told, asked = ranked_by(outcomes), [key for key in also(outcomes) if key == "ensemble"]
    ranked = sorted(outcomes, key=lambda s: (bool(s["diverged"]), -(_mean(s, told) or 0.0)))
    words = [SWEEP_CAPTION, *(ALSO[key][1] for key in asked), *["Ranked by that."] * (told == "ensemble")]
    more = f" {len(ranked) - most} more are in the tidy file." if len(ranked) > most else ""
    table = plain_table(title, f"{' '.join(words)}{more}")
    for key in first["set"]:
        table.add_column(key, justify="right")
    reached = ("accuracy\n%", "± of\nlearners", "own\ndata", *(ALSO[key][0] for key in asked))
    for heading in (*reached, "up a\nround", "down a\nround", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, s in enumerate(ranked[:most]):
        spread = s["accuracy"]["std_seeds"]
        table.add_row(
            *(f"{value}" for value in s["set"].values()),
            _number(s["accuracy"]["mean"]) + ("" if spread is None else f" ±{spread:4.1f}"),
            _number(s["accuracy"]["std_learners"]),
            _number(s["accuracy_local"]["mean"]),
            *(told_also(s, key) for key in asked),
            size(s["bytes"]["up"]),
            size(s["bytes"]["down"]),
            "no number" if s["diverged"] else "best" if rank == 0 else "",
            style="bold" if rank == 0 else "",
        )
    return table


def _models(names: str) -> str:
    """Models without the way to their files."""
    return ", ".join(Path(name).name for name in names.split(","))


def table_of(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Table:
    """Any rows of one kind: words to the left, numbers to the right, nothing for what is missing."""
    table = plain_table(title)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    for key in keys:
        words = all(isinstance(row.get(key), str | None) and not _looks_like_a_number(row.get(key)) for row in rows)
        table.add_column(key, justify="left" if words else "right")
    for row in rows:
        cells = [row.get(key) for key in keys]
        table.add_row(*("" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells))
    return table


def _looks_like_a_number(value: Any) -> bool:
    return isinstance(value, str) and value[:1].isdigit()


def label(method: str, settings: Mapping[str, Any]) -> str:
    """A method and what was set of it."""
    return " ".join([method, *(f"{k}={v}" for k, v in settings.items())])


def plain_table(title: str | None = None, caption: str | None = None) -> Table:
    """A table in the house style: narrow enough for a terminal of 80 columns."""
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )


CAPTION = (
    "Accuracy on the test set after the last round: mean over learners, ± standard deviation over seeds; own data: "
    "weighted to each learner's own classes, and shifted like its own. Bytes: of a learner in a round; total: of a "
    "federation, both ways."
)


SWEEP_CAPTION = (
    "Accuracy on the test set after the last round: mean over learners, ± standard deviation over seeds, which are the "
    "same for every setting."
)


def size(count: float) -> str:
    """Bytes in words: 0, 812 B, 3.12 kB, 9.89 MB."""
    if count == 0:
        return "0"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def count(number: int, noun: str) -> str:
    """So many of something."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def plain_text(table: Table) -> str:
    """The table without colors, wide enough for all of it."""
    stream = io.StringIO()
    Console(file=stream, width=200, no_color=True, markup=False).print(table)
    return stream.getvalue()
