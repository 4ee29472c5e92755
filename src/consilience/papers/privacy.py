"""Does sharing pay under differential privacy? Accuracy by epsilon, for both mechanisms, against learning alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.published import TASKS

EPSILONS: tuple[float | None, ...] = (1.0, 2.0, 4.0, 8.0, None)
"""Budgets over the whole training; None is no noise at all."""
DELTA = 1e-5
MECHANISMS: dict[str, dict[str, Any]] = {
    "upload": {"method": {"name": "federated-distillation", "kd": 0.1}, "private_clip": 1.0, "private_uploads": 5},
    "training": {"method": {"name": "fedavg"}, "private_clip": 1.0, "lr": 0.03},
}
"""Each mechanism that is compared, with the method and the settings that suit it: few values for noise on a whole
upload, weights where steps have noise. Chosen by validation accuracy on digits, seeds from 1000 on."""
_SIZES = {"120 images": 120, "6,000 images": 6000}
_LEARNERS, _ALONE, _SEEDS = 10, "alone", 3
_NONE = "none"


def _cells(scale: Scale) -> list[Cell]:
    """For each size: learning alone, and each mechanism with every budget."""
    found = []
    for size, samples in {"100 samples": 100}.items() if scale.quick else _SIZES.items():
        task = {"data": "digits", "rounds": 30} if scale.quick else {**TASKS["MNIST"], "rounds": 30}
        common = {**task, **scale.settings(_SEEDS), "learners": _LEARNERS, "train": _LEARNERS * samples}
        common |= {"eval_every": common["rounds"]}
        found.append(
            Cell({"size": size, "mechanism": _ALONE, "epsilon": ""}, common | {"method": {"name": "independent"}})
        )
        budgets = EPSILONS[::2] if scale.quick else EPSILONS
        found += [_cell(common, size, name, epsilon) for name in MECHANISMS for epsilon in budgets]
    return found


def _cell(common: Mapping[str, Any], size: str, mechanism: str, epsilon: float | None) -> Cell:
    """A run with one mechanism and budget; without noise, the method as it is by default."""
    chosen = MECHANISMS[mechanism]
    if epsilon is None:
        settings = {**common, "method": {"name": chosen["method"]["name"]}}
    else:
        settings = {**common, **chosen, "private": mechanism, "epsilon": epsilon, "delta": DELTA}
    return Cell(
        {"size": size, "mechanism": mechanism, "epsilon": _NONE if epsilon is None else f"{epsilon:g}"}, settings
    )


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One table for each size, and what it says in a sentence for each mechanism."""
    sizes = dict.fromkeys(outcome.labels["size"] for outcome in outcomes)
    return [_section(size, [o for o in outcomes if o.labels["size"] == size]) for size in sizes]


def _section(size: str, outcomes: Sequence[Outcome]) -> ResultSection:
    first = outcomes[0].summary
    alone = next((o for o in outcomes if o.labels["mechanism"] == _ALONE), None)
    lines: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        name = outcome.labels["mechanism"]
        column = "accuracy" if name == _ALONE else f"epsilon {outcome.labels['epsilon']}"
        column = "no noise" if column == f"epsilon {_NONE}" else column
        lines.setdefault(name, {"mechanism": name})[column] = _format(outcome)
    told = [smallest_that_pays(name, outcomes, alone) for name in MECHANISMS]
    text = (
        f"{first['learners']} learners with {size} each, {first['rounds']} rounds, {first['model']}, seeds: "
        f"{first['seeds']}, delta {DELTA:g} over the whole training. Mean accuracy over learners after the last round, "
        f"%, and its standard deviation over seeds. upload: federated distillation, noise on whole uploads, for a "
        f"learner's whole data set. training: FedAvg, noise in every step, for single samples. " + " ".join(told)
    )
    name = f"privacy-{size.split()[0].replace(',', '')}"
    return ResultSection(
        f"{size} per learner: accuracy under differential privacy, %", text, list(lines.values()), name=name
    )


def smallest_that_pays(mechanism: str, outcomes: Sequence[Outcome], alone: Outcome | None) -> str:
    """A sentence: the smallest epsilon with which learners are more accurate than alone with every seed, if any is."""
    if alone is None:
        return ""
    known = {o.labels["epsilon"]: o for o in outcomes if o.labels["mechanism"] == mechanism}
    base, seeds = alone.summary["accuracy"]["mean"], alone.summary["accuracy"]["by_seed"]
    paying = [
        float(epsilon)
        for epsilon, outcome in known.items()
        if epsilon != _NONE
        and all(own > other for own, other in zip(outcome.summary["accuracy"]["by_seed"], seeds, strict=True))
    ]
    if paying:
        return f"{mechanism}: the smallest epsilon tried with which sharing pays is {min(paying):g} ({base:.1f} alone)."
    return f"{mechanism}: sharing pays with none of the budgets tried ({base:.1f} alone)."


def _format(outcome: Outcome) -> str:
    found = outcome.summary["accuracy"]
    spread = found.get("std_seeds")
    return f"{found['mean']:.1f}" + (f" ± {spread:.1f}" if outcome.summary["seeds"] > 1 and spread is not None else "")


PRIVACY = Reproduction(
    "privacy", "Does sharing pay under differential privacy? By epsilon and mechanism", _cells, _sections
)
