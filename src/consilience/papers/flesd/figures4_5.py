"""FLESD's figures 4 and 5: how often to communicate, and how the losses fall."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, Scale, Shown
from consilience.papers.flesd import communication
from consilience.papers.flesd.experiment import OBJECTIVE, SIZES, Size, alpha_of, circumstances
from consilience.simulation.records.run_folder import RunFolder

_SHARED, _LASTING, _LOCAL = "total epochs fixed", "local epochs fixed", "two rounds"
_TERMS = {"simclr": "local training", "similarity": "distillation"}
"""The losses that are drawn, by the metric and in words."""
Row = Mapping[str, Any]


def _averaged() -> dict[str, Any]:
    return {"name": "fedavg", "objective": OBJECTIVE}


# --- figure 4


def cells(size: Size, scale: Scale) -> list[Cell]:
    """Rounds that share the epochs; rounds of as many epochs each; and two rounds of more and more epochs."""
    methods = {"flesd": size.distilled(), "fedavg": _averaged()}
    found = [
        Cell(
            {"scheme": _SHARED, "row": row, "rounds": rounds},
            size.settings(scale, size.alpha, rounds, **method),
        )
        for row, method in methods.items()
        for rounds in size.rounds
    ]
    rounds, epochs = size.lasting
    for row, method in methods.items():  # one run, tested after every round, is that of fewer rounds too
        settings = size.settings(scale, size.alpha, rounds, **method)
        settings |= {"total_epochs": rounds * epochs, "eval_every": 1}
        found.append(Cell({"scheme": _LASTING, "row": row, "rounds": rounds}, settings))
    for alpha in size.alphas:
        for epochs in size.local:
            settings = size.settings(scale, alpha, 2, **size.distilled()) | {"total_epochs": 2 * epochs}
            found.append(Cell({"scheme": _LOCAL, "row": alpha_of(alpha), "epochs": epochs}, settings))
    return found


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """A section for each of the three schemes; and what travels, of which nothing was trained."""
    said = circumstances(outcomes[0]) if outcomes else ""
    shown = [
        _scheme(
            outcomes,
            _SHARED,
            "The same epochs in more or fewer rounds",
            f"{said} {_epochs(outcomes, _SHARED)} Published for CIFAR-100: best are 2 rounds of FLESD, 10 of FedAvg.",
            "rounds",
        ),
        _scheme(
            outcomes,
            _LASTING,
            "More rounds of as many epochs each",
            f"{_each(outcomes, _LASTING)} Published for CIFAR-100, 100 epochs each: FLESD has soon come to its best.",
            "rounds",
        ),
        _scheme(
            outcomes,
            _LOCAL,
            "Two rounds of more and more epochs",
            "FLESD. Published for CIFAR-100: the more local epochs, the better.",
            "epochs in a round",
        ),
    ]
    return [*(section for section in shown if section.table), *communication.told()]


def _epochs(outcomes: Sequence[Outcome], scheme: str) -> str:
    found = {RunFolder(o.folder).config.total_epochs for o in outcomes if o.labels["scheme"] == scheme}
    return "".join(f"{epochs} epochs in all." for epochs in found)


def _each(outcomes: Sequence[Outcome], scheme: str) -> str:
    found = {RunFolder(o.folder).config.epochs for o in outcomes if o.labels["scheme"] == scheme}
    return "".join(f"{epochs} epochs in a round." for epochs in found)


def _scheme(outcomes: Sequence[Outcome], scheme: str, heading: str, text: str, x: str) -> Shown:
    """Accuracy by a linear probe over `x`, as a table and as lines."""
    mine = [o for o in outcomes if o.labels["scheme"] == scheme]
    rows = [row for o in mine for row in (_tested(o) if scheme == _LASTING else [_ended(o, x)])]
    letter = "T" if x == "rounds" else "E"
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        lines.setdefault(row[x], {x: f"{letter} = {row[x]}"})[row["method"]] = f"{row['accuracy']:.1f}"
    text = f"{text} Accuracy by a linear probe, in %, the mean over learners."
    return Shown(
        heading, text.strip(), [lines[key] for key in sorted(lines)], _curves(rows, x), scheme.replace(" ", "-")
    )


def _ended(outcome: Outcome, x: str) -> dict[str, Any]:
    """What a run came to in the end."""
    where = outcome.labels["epochs" if x.startswith("epochs") else x]
    return {"method": outcome.labels["row"], x: where, "accuracy": outcome.summary["probes"]["linear"]["mean"]}


def _tested(outcome: Outcome) -> list[dict[str, Any]]:
    """What a run had come to after every round."""
    return [
        {"method": outcome.labels["row"], "rounds": round_, "accuracy": mean}
        for round_, mean in by_round(outcome, "accuracy_linear").items()
    ]


def by_round(outcome: Outcome, metric: str) -> dict[int, float]:
    """The mean of a metric over learners and seeds, after every round that has it."""
    first, *rest = metric.split(".")
    values: dict[int, list[float]] = {}
    for text in RunFolder(outcome.folder).lines():
        line = json.loads(text)
        value = line.get(first)
        for key in rest:
            value = (value or {}).get(key)
        if line["round"] and value is not None:
            values.setdefault(line["round"], []).append(value)
    return {round_: fmean(found) for round_, found in sorted(values.items())}


def _curves(rows: Sequence[Row], x: str, y: str = "accuracy", title: str = "accuracy, %") -> Callable[[], Any]:
    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, y=y, title=title, x=x)

    return figure


# --- figure 5


def converging_cells(size: Size, scale: Scale) -> list[Cell]:
    """Many epochs, in few rounds of FLESD and in more of FedAvg."""
    epochs, few, many = size.converging
    return [
        Cell(
            {"row": method["name"]},
            size.settings(scale, size.alpha, rounds, **method) | {"total_epochs": epochs, "eval_every": 1},
        )
        for rounds, method in ((few, size.distilled()), (many, _averaged()))
    ]


def converging_told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """The losses against the epochs they took, and what was learned meanwhile."""
    losses, reached = [], []
    for outcome in outcomes:
        row, epochs = outcome.labels["row"], RunFolder(outcome.folder).config.epochs
        for term, words in _TERMS.items():
            losses += [
                {"method": f"{row}, {words}", "epochs": epochs * r, "loss": loss, "term": words}
                for r, loss in by_round(outcome, f"loss.{term}").items()
            ]
        reached += [
            {"method": row, "epochs": epochs * r, "accuracy": mean}
            for r, mean in by_round(outcome, "accuracy_linear").items()
        ]
    local = [row for row in losses if row["term"] == _TERMS["simclr"]]
    distilled = [row for row in losses if row["term"] == _TERMS["similarity"]]
    text = (
        f"{circumstances(outcomes[0])} The mean over learners of the contrastive loss, and over a round: a point is at "
        f"the epoch its round ends with. Published for CIFAR-100, 2,000 epochs: both fall alike, and after each "
        f"distillation FLESD's begins higher."
    )
    shown = [
        _course("The loss of local training", text, local, "loss", "local"),
        _course(
            "The loss of the distillation", "The mean over a round's distillation.", distilled, "loss", "distilled"
        ),
        _course("Accuracy by a linear probe, %", "After the round.", reached, "accuracy", "accuracy"),
    ]
    return [section for section in shown if section.table]


def _course(heading: str, text: str, rows: Sequence[Row], y: str, name: str) -> Shown:
    digits = 1 if y == "accuracy" else 3
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        lines.setdefault(row["epochs"], {"after": f"epoch {row['epochs']}"})[row["method"]] = f"{row[y]:.{digits}f}"
    title = "accuracy, %" if y == "accuracy" else y
    return Shown(heading, text, [lines[key] for key in sorted(lines)], _curves(rows, "epochs", y, title), name)


COMMUNICATION = SIZES.both(
    "flesd-communication", "FLESD's figure 4 and equation 11: how often to communicate, and what travels", cells, told
)
CONVERGENCE = SIZES.both(
    "flesd-convergence", "FLESD's figure 5: losses over many epochs", converging_cells, converging_told
)
