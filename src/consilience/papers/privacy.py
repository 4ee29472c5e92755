"""Does sharing pay under differential privacy? Accuracy by epsilon, for both mechanisms, against learning alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.published import TASKS

EPSILONS: tuple[float | None, ...] = (1.0, 2.0, 4.0, 8.0, None)
"""Budgets over the whole training; None is no noise at all."""
DELTA = 1e-5
MECHANISMS = {"upload": "federated-distillation", "training": "fedavg"}
"""The method of each mechanism: few values for noise on a whole upload, weights where steps have noise."""
ALONE = {"alone": "independent", "alone, self-distillation": "self-distillation"}
"""Learning alone, and its control: a learner that is pulled to its own class means, without partners."""
LEARNERS = 10
_SEEDS, _NONE = 3, "none"


@dataclass(frozen=True)
class Size:
    """How many samples each learner has, and how runs of this size train.

    settings: of all rows. rows: of one row, in addition; of the mechanisms, only where uploads are private.
    """

    samples: int
    settings: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]

    @property
    def common(self) -> dict[str, Any]:
        """The settings that all rows have in common."""
        of_size = {"learners": LEARNERS, "train": LEARNERS * self.samples, "eval_every": self.settings["rounds"]}
        return {**self.settings, **of_size}


_UPLOAD = {"method": {"kd": 0.1}, "private_clip": 1.0, "private_uploads": 5}
_TRAINING = {"private_clip": 1.0, "lr": 0.03}
SIZES = {
    "120 images": Size(120, {**TASKS["MNIST"], "rounds": 100}, {"upload": _UPLOAD, "training": _TRAINING}),
    "6,000 images": Size(
        6000,
        {**TASKS["MNIST"], "rounds": 10, "batch_size": 128},
        {"upload": _UPLOAD, "training": _TRAINING | {"batch_size": 256}},
    ),
}
"""Sizes by name. Settings of rows were chosen by validation accuracy, seeds from 1000 on: `choose_settings.py` in
benchmarks."""
_QUICK = {"100 samples": Size(100, {"data": "digits", "rounds": 30}, {"upload": _UPLOAD, "training": _TRAINING})}


def _cells(scale: Scale) -> list[Cell]:
    """For each size: learning alone, and each mechanism with every budget."""
    found = []
    for name, size in (_QUICK if scale.quick else SIZES).items():
        for row in ALONE:
            found.append(_cell(scale, name, size, row, None))
        for row in MECHANISMS:
            found += [_cell(scale, name, size, row, e) for e in (EPSILONS[::2] if scale.quick else EPSILONS)]
    return found


def _cell(scale: Scale, name: str, size: Size, row: str, epsilon: float | None) -> Cell:
    """A run of a row with a budget; without noise, the method as it is by default."""
    method: dict[str, Any] = {"name": ALONE.get(row) or MECHANISMS[row]}
    own = dict(size.rows.get(row, {})) if row in ALONE or epsilon is not None else {}
    method |= own.pop("method", {})
    if row in MECHANISMS and epsilon is not None:
        own |= {"private": row, "epsilon": epsilon, "delta": DELTA}
    label = "" if row in ALONE else _NONE if epsilon is None else f"{epsilon:g}"
    settings = {**size.common, **scale.settings(_SEEDS), **own, "method": method}
    return Cell({"size": name, "mechanism": row, "epsilon": label}, settings)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One table for each size, and what it says in a sentence for each mechanism."""
    sizes = dict.fromkeys(outcome.labels["size"] for outcome in outcomes)
    return [_section(size, [o for o in outcomes if o.labels["size"] == size]) for size in sizes]


def _section(size: str, outcomes: Sequence[Outcome]) -> ResultSection:
    first = outcomes[0].summary
    alone = next((o for o in outcomes if o.labels["mechanism"] == "alone"), None)
    lines: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        name = outcome.labels["mechanism"]
        column = {"": "accuracy", _NONE: "no noise"}.get(outcome.labels["epsilon"], "")
        column = column or f"epsilon {outcome.labels['epsilon']}"
        lines.setdefault(name, {"mechanism": name})[column] = _format(outcome)
    pays = [smallest_that_pays(name, outcomes, alone) for name in MECHANISMS]
    text = (
        f"{first['learners']} learners with {size} each, {first['rounds']} rounds, {first['model']}, seeds: "
        f"{first['seeds']}, delta {DELTA:g} over the whole training. Mean accuracy over learners after the last round, "
        f"%, and its standard deviation over seeds. upload: federated distillation, noise on whole uploads, for a "
        f"learner's whole data set. training: FedAvg, noise in every step, for single samples. " + " ".join(pays)
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
