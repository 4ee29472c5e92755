"""Every method of a comparison against one of them, the baseline: differences paired by seed, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from consilience.presentation.gains import Summary, by_seed, own_by_seed
from consilience.presentation.paired import Difference, paired_difference
from consilience.presentation.score_words import metric_headings, metric_of
from consilience.presentation.tables import method_label, new_table, plural

_CAPTION = (
    "In points: the mean over seeds, and in brackets its 95 % interval (Student's t). Both methods have the same "
    "seeds, hence the same split of the data. If the interval contains 0, there is no clear difference."
)
_SCORES = ("accuracy", "accuracy_own")
_ONE_SEED = "One seed has no interval; more seeds have one: --seeds 5."


def differences(summary: Summary, baseline: Summary) -> dict[str, Difference | None]:
    """The differences of a run to the baseline by metric; None where they have no seed or not the rounds in common.

    The own accuracy is compared only between runs with equally many learners: one on all data has no data of its own.
    """
    if summary.get("rounds") != baseline.get("rounds"):
        return dict.fromkeys(_SCORES)
    same = summary.get("learners") == baseline.get("learners")
    own = paired_difference(own_by_seed(summary), own_by_seed(baseline)) if same else None
    return {"accuracy": paired_difference(by_seed(summary), by_seed(baseline)), "accuracy_own": own}


def add_differences(summaries: Sequence[Summary], baseline: int | None) -> list[dict[str, Any]]:
    """The summaries, with `against` where there is a baseline: the differences to it. baseline: its place, or None."""
    if baseline is None or baseline >= len(summaries):
        return [dict(summary) for summary in summaries]
    other = summaries[baseline]
    name = str(other.get("label") or method_label(other["method"], other["settings"]))
    return [
        {**summary, "against": {"method": name, **_as_json(differences(summary, other))}}
        if place != baseline
        else dict(summary)
        for place, summary in enumerate(summaries)
    ]


def differences_table(summaries: Sequence[Summary]) -> Table | None:
    """One row per run that is compared with a baseline; None if none is. Its numbers are those of `against`."""
    rows = against_rows(summaries)
    if not rows:
        return None
    table = new_table(against_title(summaries), against_caption(summaries))
    table.add_column("method", min_width=12)
    for heading in against_headings(summaries):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, cells in rows:
        table.add_row(name, *cells.values())
    return table


def against_headings(summaries: Sequence[Summary]) -> list[str]:
    """The headings of the columns of differences."""
    return [heading.replace(" %", "") for heading in metric_headings(metric_of(summaries)).values()]


def against_title(summaries: Sequence[Summary]) -> str:
    """Against which method, and over how many seeds."""
    compared = [s["against"] for s in summaries if s.get("against")]
    seeds = max((found["seeds"] for each in compared for found in _found(each)), default=0)
    return f"Difference to {compared[0]['method']} with the same seeds ({plural(seeds, 'seed')})"


def against_caption(summaries: Sequence[Summary]) -> str:
    """What the numbers mean; with one seed, that there is no interval."""
    found = [each for s in summaries for each in _found(s.get("against") or {})]
    return _CAPTION if any(each["interval"] for each in found) else _ONE_SEED


def against_rows(summaries: Sequence[Summary]) -> list[tuple[str, dict[str, str]]]:
    """The label of each run that is compared with a baseline, and its differences as text by metric."""
    return [
        (
            str(s.get("label") or method_label(s["method"], s["settings"])),
            {metric: _text(s["against"].get(metric)) for metric in _SCORES},
        )
        for s in summaries
        if s.get("against")
    ]


def _found(against: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [against[metric] for metric in _SCORES if against.get(metric)]


def _text(found: Mapping[str, Any] | None) -> str:
    """A mean difference and its interval: +1.2 (+0.4 to +2.0)."""
    if found is None:
        return "–"
    low, high = found["interval"] or (None, None)
    return f"{found['mean']:+.1f}" + ("" if low is None else f" ({low:+.1f} to {high:+.1f})")


def _as_json(found: Mapping[str, Difference | None]) -> dict[str, Any]:
    return {metric: None if each is None else each.to_dict() for metric, each in found.items()}
