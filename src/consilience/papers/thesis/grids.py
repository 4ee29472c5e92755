"""Experiments that are a list of settings by a list of methods: heterogeneity, asynchrony, and what a byte buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from consilience.data.heterogeneity import CASES
from consilience.papers.cells import Cell, Outcome, Reproduction, Scale, Shown
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS, in_words

_QUICK = {"rounds": 15, "test": 2000}
_MET = {row: ROWS[row] for row in ROWS if row not in ("centralized", "fedavg, different starts", "fedavg-1bit")}
_ALPHAS = (100, 10, 1, 0.3, 0.1, 0.01)
_OFFLINE = (0, 0.3, 0.5, 0.7, 0.9)
_MODELS = {"every other an MLP": {"model": ",".join(["lenet5", "mlp"] * 5), "width": 64}}
_UNLIKE = {row: _MET[row] for row in _MET if row not in ("fedavg", "consilience")}  # weights cannot travel between them


def _grid(
    scale: Scale, conditions: Mapping[str, dict[str, Any]], methods: Mapping[str, dict[str, Any]], **others: Any
) -> list[Cell]:
    """Every method under every condition, on MNIST as published for ten learners."""
    base: dict[str, Any] = {**TASKS["MNIST"], **scale.settings(5), "learners": 10, **others}
    base |= _QUICK if scale.quick else {}
    base |= {"eval_every": base["rounds"]}
    return [
        Cell({"condition": condition, "row": row}, {**base, **changes, "method": method})
        for condition, changes in conditions.items()
        for row, method in methods.items()
    ]


def _table(outcomes: Sequence[Outcome], column: str, own: bool = False) -> list[dict[str, Any]]:
    """One line a condition, one column a method; on the common test set, or on data like the learner's own."""
    lines: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        line = lines.setdefault(outcome.labels["condition"], {column: outcome.labels["condition"]})
        line[outcome.labels["row"]] = in_words(outcome, "accuracy_local" if own else "accuracy")
    return list(lines.values())


# --- heterogeneity


def _heterogeneity(scale: Scale) -> list[Cell]:
    alphas = (100, 0.1) if scale.quick else _ALPHAS
    cases = dict(list(CASES.items())[3:5]) if scale.quick else CASES
    conditions: dict[str, dict[str, Any]] = {f"alpha {a:g}": {"partition": f"dirichlet({a})"} for a in alphas}
    conditions |= {f"case {figure}": {"partition": p, "shift": s} for figure, (p, s) in cases.items()}
    return _grid(scale, conditions, _MET) + _grid(scale, _MODELS, _UNLIKE)


def _heterogeneity_told(outcomes: Sequence[Outcome]) -> list[Shown]:
    text = (
        "MNIST, LeNet5, 1,200 images among ten learners. alpha: of the Dirichlet draw of each class; case: of the "
        "thesis's Table 2."
    )
    dealt = [o for o in outcomes if o.labels["condition"] not in _MODELS]
    mixed = [o for o in outcomes if o.labels["condition"] in _MODELS]
    shown = [
        Shown("Accuracy on the common test set, %", text, _table(dealt, "learners' data"), name="heterogeneity"),
        Shown("Accuracy on data like the learner's own, %", "", _table(dealt, "learners' data", own=True), name="own"),
        Shown(
            "Different models together, %",
            "Five learners have a LeNet5 and five a perceptron, with one feature width, 64; weights cannot travel "
            "between them. Learners' data is iid.",
            [_by_model(o) for o in mixed],
            name="models",
        ),
    ]
    return [section for section in shown if section.table]


def _by_model(outcome: Outcome) -> dict[str, Any]:
    """What the learners of each model reached."""
    kinds = {name: in_words(replace(outcome, summary=kind)) for name, kind in outcome.summary["kinds"].items()}
    return {"method": outcome.labels["row"], **kinds}


# --- asynchrony


def _asynchrony(scale: Scale) -> list[Cell]:
    chances = (0, 0.9) if scale.quick else _OFFLINE
    conditions: dict[str, dict[str, Any]] = {f"offline {p:g}": {"offline": p} for p in chances}
    conditions |= {"two of ten present": {"participation": 0.2}}
    return _grid(scale, conditions, _MET)


def _asynchrony_told(outcomes: Sequence[Outcome]) -> list[Shown]:
    text = (
        "MNIST, LeNet5, 1,200 images among ten learners. Offline: the chance that a learner cannot be reached in a "
        "round; it trains on with its last answers. Two present: two of ten take part in a round, drawn anew."
    )
    return [
        Shown(
            "Accuracy, %, where learners cannot always be reached",
            text,
            _table(outcomes, "presence"),
            name="asynchrony",
        )
    ]


# --- the frontier

_SHARED: Mapping[str, dict[str, Any]] = {
    "nothing": {"name": "independent"},
    "prototypes": {"name": "fedproto"},
    "prototypes, 16 bits": {"name": "fedproto", "encoding": "float16"},
    "logits": {"name": "federated-distillation"},
    "representations": {"name": "representation-sharing"},
    "representations, 16 bits": {"name": "representation-sharing", "encoding": "float16"},
    "representations, 8 bits": {"name": "representation-sharing", "encoding": "int8"},
    **{f"1-bit weights every {k}": {"name": "fedavg-1bit", "every": k} for k in (1, 2, 4, 8)},
    **{f"representations + 1-bit weights every {k}": {"name": "consilience", "every": k} for k in (1, 2, 4, 8)},
    "8-bit weights": {"name": "fedavg", "encoding": "int8"},
    "16-bit weights": {"name": "fedavg", "encoding": "float16"},
    "weights": {"name": "fedavg"},
}


def _frontier(scale: Scale) -> list[Cell]:
    return _grid(scale, {"MNIST, ten learners": {}}, _SHARED)


def _frontier_told(outcomes: Sequence[Outcome]) -> list[Shown]:
    rows = [
        {
            "what travels": outcome.labels["row"],
            "bytes up a round": round(outcome.summary["bytes"]["up"]),
            "accuracy": round(outcome.summary["accuracy"]["mean"], 2),
            "with spread": in_words(outcome),
        }
        for outcome in outcomes
    ]
    text = (
        "MNIST, LeNet5, 1,200 images among ten learners: what a learner sends in a round, and what all of it came to."
    )
    ranked = sorted(rows, key=lambda row: row["bytes up a round"])

    def figure() -> Any:
        from consilience.presentation.scatter_charts import frontier

        return frontier(ranked, "bytes up a round", "accuracy", "what travels")

    return [Shown("What a byte buys", text, ranked, figure, "frontier")]


HETEROGENEITY = Reproduction(
    "thesis-heterogeneity",
    "Dirichlet alpha from 100 to 0.01, and the nine ways in which data can differ",
    _heterogeneity,
    _heterogeneity_told,
)
ASYNCHRONY = Reproduction(
    "thesis-asynchrony", "Learners that cannot be reached, down to two present", _asynchrony, _asynchrony_told
)
FRONTIER = Reproduction("frontier", "Accuracy against bytes for compositions of exchanges", _frontier, _frontier_told)
