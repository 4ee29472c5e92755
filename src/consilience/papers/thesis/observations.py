"""What observations, the discriminator and the weighting of learners change in representation sharing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.condition_grid import SETUP, by_condition, grid_cells
from consilience.papers.thesis.formats import format_accuracy, format_difference

PUBLISHED = "as published"
"""The row in which n_avg = 10, up and down are 1, the discriminator is the classifier, and samples count equally."""
_NUMBERS: Mapping[str, Sequence[int]] = {"n_avg": (1, 2, 5), "up": (2, 5, 10), "down": (2, 5, 10)}
_WORDS = {"discriminator": ("exponential", "exponential-mlp"), "weighting": ("equal",)}
_CONDITIONS: Mapping[str, Mapping[str, Any]] = {"iid": {}, "alpha 0.3": {"partition": "dirichlet(0.3)"}}
_QUICK = (PUBLISHED, "n_avg 2", "down 5", "discriminator exponential-mlp", "weighting equal")


def _rows() -> dict[str, dict[str, Any]]:
    """The published setting, and every setting that differs from it in one thing."""
    found: dict[str, dict[str, Any]] = {PUBLISHED: {"name": "representation-sharing"}}
    for key, values in {**_NUMBERS, **_WORDS}.items():
        for value in values:
            found[f"{key} {value}"] = {**found[PUBLISHED], key: value}
    found["n_avg 1"] |= {"min_count": 1}  # single samples leave the learner, which is refused otherwise
    return found


def _cells(scale: Scale) -> list[Cell]:
    rows = {row: method for row, method in _rows().items() if not scale.quick or row in _QUICK}
    return grid_cells(scale, _CONDITIONS, rows)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One line per setting: accuracy under each condition, and the difference to the published one by seed."""
    lines: dict[str, dict[str, Any]] = {}
    for condition, found in by_condition(outcomes).items():
        published = next((o for o in found if o.labels["row"] == PUBLISHED), None)
        for outcome in found:
            row, sent = outcome.labels["row"], outcome.summary["message_bytes"]
            about = {"setting": row, "upload, bytes": sent["up"], "download, bytes": sent["down"]}
            line = lines.setdefault(row, about)
            line[condition] = format_accuracy(outcome)
            if published is not None and outcome is not published:
                line[f"{condition}, difference"] = format_difference(outcome, published)
    first = outcomes[0].summary
    text = (
        f"{SETUP}, {first['rounds']} rounds, seeds: {first['seeds']}. Representation sharing; one setting differs from "
        f"{PUBLISHED!r}: n_avg 10, up 1, down 1, discriminator classifier, weighting samples. With n_avg 1 single "
        f"samples' features leave the learner. alpha: labels are split by Dirichlet(alpha). Differences are by seed, "
        f"with 95 % intervals."
    )
    return [ResultSection("Observations, discriminator and weighting", text, list(lines.values()), name="observations")]


OBSERVATIONS = Reproduction(
    "thesis-observations",
    "Representation sharing: n_avg, up, down, the discriminator and the weighting",
    _cells,
    _sections,
)
