"""Means that resist: accuracy of honest learners while others misbehave, by attack, share of attackers and mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.published import TASKS

MEANS: dict[str, dict[str, Any]] = {
    "mean": {},
    "clip": {"clip_ratio": 1.0},
    "trimmed mean": {"aggregation": "trimmed(0.3)"},
    "median": {"aggregation": "median"},
}
"""Each mean that is compared, and its settings."""
_METHODS = ("fedavg", "consilience", "representation-sharing")
_ATTACKS = ("sign-flip", "scale(10)", "label-flip", "prototype-swap")
_STRONG = "sign-flip+scale(5)"
_LEARNERS, _SHARES = 10, (0.1, 0.2, 0.3, 0.4)
_DIGITS: dict[str, Any] = {"data": "digits", "rounds": 30}
_SEEDS = {"digits": 3, "MNIST": 2}
_NONE = "no attack"


def _cells(scale: Scale) -> list[Cell]:
    """On digits every method, attack, share and mean; on MNIST, fedavg with three of ten that flip signs."""
    digits = _DIGITS | {"rounds": 10, "train": 600} if scale.quick else _DIGITS
    methods, shares = (_METHODS[:1], (0.1, 0.3)) if scale.quick else (_METHODS, _SHARES)
    found = [
        _cell(scale, digits, {"data": "digits", "method": method}, attack, share, mean)
        for method in methods
        for attack, share in _conditions(method, shares)
        for mean in MEANS
    ]
    if scale.quick:
        return found
    mnist = [(_NONE, "mean"), *((attack, mean) for attack in ("sign-flip", _STRONG) for mean in MEANS)]
    return found + [
        _cell(scale, TASKS["MNIST"], {"data": "MNIST", "method": "fedavg"}, attack, 0.3, mean) for attack, mean in mnist
    ]


def _conditions(method: str, shares: Sequence[float]) -> Iterator[tuple[str, float]]:
    """No attack once, and each attack that the method's uploads allow with every share of attackers."""
    yield _NONE, 0.3
    for attack in _ATTACKS:
        if attack != "prototype-swap" or method != "fedavg":
            yield from ((attack, share) for share in shares)


def _cell(
    scale: Scale, task: Mapping[str, Any], labels: Mapping[str, Any], attack: str, share: float, mean: str
) -> Cell:
    """The first learners attack; without an attack the others are measured as well."""
    attackers = {"learners": f"0-{round(share * _LEARNERS) - 1}", "attack": "none" if attack == _NONE else attack}
    settings = {
        **task,
        **scale.settings(_SEEDS[labels["data"]]),
        "learners": _LEARNERS,
        "groups": {"attackers": attackers},
        **MEANS[mean],
    }
    settings |= {"eval_every": settings["rounds"], "method": {"name": labels["method"]}}
    named = {**labels, "attack": attack, "attackers": "" if attack == _NONE else f"{share:.0%}", "mean": mean}
    return Cell(named, settings)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One table for each data set and method: a line per attack and share, a column per mean."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.labels["data"], outcome.labels["method"]), []).append(outcome)
    return [_section(*key, some) for key, some in found.items()]


def _section(data: str, method: str, outcomes: Sequence[Outcome]) -> ResultSection:
    first = outcomes[0].summary
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for outcome in outcomes:
        attack, share = outcome.labels["attack"], outcome.labels["attackers"]
        line = lines.setdefault((attack, share), {"attack": attack, "attackers": share})
        line[outcome.labels["mean"]] = format_honest(outcome)
    heading = f"{data}, {method}: accuracy of honest learners, %"
    text = (
        f"{_LEARNERS} learners, {first['rounds']} rounds, {first['model']}, seeds: {first['seeds']}. Mean and standard "
        f"deviation over seeds of the mean over learners that do not attack, after the last round. clip: norms at most "
        f"the median norm; trimmed mean: 0.3 at each end; chance is 10 %."
    )
    return ResultSection(heading, text, list(lines.values()), name=f"robustness-{data.lower()}-{method}")


def format_honest(outcome: Outcome) -> str:
    """The accuracy of the learners that do not attack: its mean and its deviation over seeds."""
    (honest,) = (group for name, group in outcome.summary["groups"].items() if name != "attackers")
    found = honest["accuracy"]
    spread = found.get("std_seeds")
    return f"{found['mean']:.1f}" + (f" ± {spread:.1f}" if outcome.summary["seeds"] > 1 and spread is not None else "")


ROBUSTNESS = Reproduction(
    "robustness", "Means that resist: accuracy of honest learners while 10 to 40 % misbehave", _cells, _sections
)
