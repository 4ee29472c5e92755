"""Does sharing pay under differential privacy? Accuracy by epsilon, for both mechanisms, against learning alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.formats import format_accuracy, format_difference
from consilience.papers.thesis.published import TASKS
from consilience.presentation.gains import by_seed
from consilience.presentation.paired import Difference, paired_difference
from consilience.presentation.tables import plural

EPSILONS: tuple[float | None, ...] = (1.0, 2.0, 4.0, 8.0, None)
"""Budgets over the whole training; None is no noise at all."""
DELTA = 1e-5
MECHANISMS = {"upload": "federated-distillation", "training": "fedavg"}
"""The method of each mechanism: few values for noise on a whole upload, weights where steps have noise."""
ALONE = {
    "alone": "independent",
    "alone, self-distillation": "self-distillation",
    "alone, logits pulled to 0": "federated-distillation",
}
"""Learning alone, and its controls: a learner that is pulled to its own class means, without partners, and one that is
pulled as under "upload", to logits from which nothing can be learned, since uploads are scaled to nearly 0."""
LEARNERS = 10
_NONE = "none"


@dataclass(frozen=True)
class Size:
    """How many samples each learner has, how runs of this size train, and with how many seeds.

    settings: of all rows. rows: of one row, in addition; of the mechanisms, only where uploads are private. seeds: of
    all rows that do not have their own.
    """

    samples: int
    settings: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]
    seeds: int = 3

    @property
    def common(self) -> dict[str, Any]:
        """The settings that all rows have in common."""
        of_size = {"learners": LEARNERS, "train": LEARNERS * self.samples, "eval_every": self.settings["rounds"]}
        return {**self.settings, **of_size}


_RATE: dict[str, Any] = {"lr": 3e-3}
_UPLOAD: dict[str, Any] = {"method": {"kd": 0.3}, "private_clip": 1.0, "private_uploads": 1, **_RATE}
_TRAINING: dict[str, Any] = {"private_clip": 1.0, "lr": 0.03}
_NOTHING: dict[str, Any] = {**_UPLOAD, "private": "upload", "epsilon": 8.0, "delta": DELTA, "private_clip": 1e-6}
_ROWS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(ALONE, _RATE),
    "alone, logits pulled to 0": _NOTHING,
    "upload": _UPLOAD,
}
SIZES = {
    "120 images": Size(120, {**TASKS["MNIST"], "rounds": 100}, {**_ROWS, "training": _TRAINING}, seeds=5),
    "6,000 images": Size(
        6000,
        {**TASKS["MNIST"], "rounds": 10, "batch_size": 128},
        {**_ROWS, "training": {**_TRAINING, "batch_size": 256, "seeds": 2}},
    ),
}
"""Sizes by name. Settings of rows were chosen by validation accuracy, seeds from 1000 on: `choose_settings.py` in
benchmarks."""
_QUICK = {"100 samples": Size(100, {"data": "digits", "rounds": 30}, {**_ROWS, "training": _TRAINING})}


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
    seeds = own.pop("seeds", size.seeds)
    settings = {**size.common, **scale.settings(seeds), **own, "method": method}
    return Cell({"size": name, "mechanism": row, "epsilon": label}, settings)


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """For each size, accuracies, and differences to learning alone with what they say in a sentence."""
    sizes = dict.fromkeys(outcome.labels["size"] for outcome in outcomes)
    of_size = {size: [o for o in outcomes if o.labels["size"] == size] for size in sizes}
    return [section for size, found in of_size.items() for section in (_accuracy(size, found), _above(size, found))]


def _accuracy(size: str, outcomes: Sequence[Outcome]) -> ResultSection:
    first = outcomes[0].summary
    text = (
        f"{first['learners']} learners with {size} each, {first['rounds']} rounds, {first['model']}, seeds: "
        f"{first['seeds']}, delta {DELTA:g} over the whole training. Mean accuracy over learners after the last round, "
        f"%, and its standard deviation over seeds. upload: federated distillation, noise on whole uploads, for a "
        f"learner's whole data set. training: FedAvg, noise in every step, for single samples."
    )
    lines: dict[str, dict[str, Any]] = {}
    for each in outcomes:
        line = lines.setdefault(each.labels["mechanism"], {"mechanism": each.labels["mechanism"]})
        line[_column(each)] = format_accuracy(each)
    heading = f"{size} per learner: accuracy under differential privacy, %"
    return ResultSection(heading, text, list(lines.values()), name=f"privacy-{_name(size)}")


def _above(size: str, outcomes: Sequence[Outcome]) -> ResultSection:
    """The differences of each mechanism to both ways of learning alone."""
    lines = []
    for mechanism in MECHANISMS:
        ours = [o for o in outcomes if o.labels["mechanism"] == mechanism]
        for row in ALONE:
            base = _row(outcomes, row)
            if ours and base is not None:
                found = {_column(each): format_difference(each, base) for each in ours}
                lines.append({"mechanism": mechanism, "compared with": row, **found})
    text = " ".join(smallest_that_pays(mechanism, outcomes) for mechanism in MECHANISMS)
    heading = f"{size} per learner: points above learning alone"
    return ResultSection(heading, text, lines, name=f"privacy-{_name(size)}-above-alone")


def smallest_that_pays(mechanism: str, outcomes: Sequence[Outcome]) -> str:
    """A sentence: the smallest epsilon with which learners are clearly more accurate than alone, in every way tried."""
    alone = [base for row in ALONE if (base := _row(outcomes, row)) is not None]
    if not alone:
        return ""
    ours = [o for o in outcomes if o.labels["mechanism"] == mechanism and o.labels["epsilon"] != _NONE]
    lead = {float(each.labels["epsilon"]): _smallest_lead(each, alone) for each in ours}
    paying = {epsilon: found for epsilon, found in lead.items() if found and found.clear and found.mean > 0}
    if not paying:
        return (
            f"{mechanism}: with none of the budgets tried are learners clearly more accurate than alone, in each of "
            f"{plural(len(alone), 'way')} of learning alone."
        )
    smallest = min(paying)
    return (
        f"{mechanism}: the smallest epsilon tried with which learners are clearly more accurate than alone is "
        f"{smallest:g} ({paying[smallest].mean:+.1f} points over the best of {plural(len(alone), 'way')} of learning "
        f"alone, {paying[smallest].interval()})."
    )


def _smallest_lead(ours: Outcome, alone: Sequence[Outcome]) -> Difference | None:
    """The paired difference to the way of learning alone of which the interval reaches lowest."""
    found = [paired_difference(by_seed(ours.summary), by_seed(each.summary)) for each in alone]
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.mean if each.low is None else each.low, default=None)


def _row(outcomes: Sequence[Outcome], mechanism: str) -> Outcome | None:
    return next((o for o in outcomes if o.labels["mechanism"] == mechanism), None)


def _column(outcome: Outcome) -> str:
    epsilon = outcome.labels["epsilon"]
    return {"": "accuracy", _NONE: "no noise"}.get(epsilon, f"epsilon {epsilon}")


def _name(size: str) -> str:
    return size.split()[0].replace(",", "")


PRIVACY = Reproduction(
    "privacy", "Does sharing pay under differential privacy? By epsilon and mechanism", _cells, _sections
)
