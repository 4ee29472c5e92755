"""Accuracy against bytes for compositions of exchanges and encodings, on MNIST and CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.methods import settings_of
from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.formats import both_ways, format_accuracy
from consilience.papers.thesis.published import TASKS
from consilience.presentation.tables import plural

Compositions = Mapping[str, dict[str, Any]]
"""The settings of a method, by what is exchanged."""
_BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4, "bit": 1}
_ONE_BIT_UP = (("bit", "float32"), ("bit", "int8"), ("bit", "int4"), ("bit", "bit"))
_ENCODINGS = (*((each, each) for each in ("float32", "float16", "int8", "int4")), *_ONE_BIT_UP)
"""Encodings of weights, up and down."""


def weights_name(up: str, down: str, every: int = 1) -> str:
    """How weights are exchanged: weights, 1 bit up, 4 down, every 2."""
    bits = plural(_BITS[up], "bit")
    ways = f"{bits} up and down" if up == down else f"{bits} up, {_BITS[down]} down"
    return f"weights, {ways}" + (f", every {every}" if every > 1 else "")


def _weights(up: str, down: str, every: int = 1) -> Compositions:
    return {weights_name(up, down, every): {"name": "fedavg", "up": up, "down": down, "every": every}}


def _default(up: str, down: str, every: int = 1) -> Compositions:
    """The default method with these encodings of its weights."""
    name = f"representations + {weights_name(up, down, every)}"
    return {name: {"name": "consilience", "up": up, "down": down, "every": every}}


_REPRESENTATIONS: Compositions = {
    "prototypes": {"name": "fedproto"},
    "prototypes, 16 bits": {"name": "fedproto", "encoding": "float16"},
    "logits": {"name": "federated-distillation"},
    "representations": {"name": "representation-sharing"},
    "representations, 16 bits": {"name": "representation-sharing", "encoding": "float16"},
    "representations, 8 bits": {"name": "representation-sharing", "encoding": "int8"},
}
_COMMON: Compositions = {
    "nothing": {"name": "independent"},
    "representations, 16 bits": _REPRESENTATIONS["representations, 16 bits"],
    **{name: each for ways in _ENCODINGS for name, each in _weights(*ways).items()},
    **{name: each for ways in _ONE_BIT_UP for name, each in _default(*ways).items()},
}
_RARELY: Compositions = {
    name: each
    for every in (2, 4, 8)
    for found in (_weights("bit", "bit", every), _default("bit", "int4", every))
    for name, each in found.items()
}
_COMPOSITIONS: Mapping[str, Compositions] = {
    "MNIST": {**_COMMON, **_REPRESENTATIONS, **_RARELY},
    "CIFAR-10": _COMMON,
}
_SEEDS = {"MNIST": 5, "CIFAR-10": 2}
_QUICK = {"rounds": 15, "test": 2000}
_QUICK_COMPOSITIONS: Compositions = {
    "nothing": _COMMON["nothing"],
    "representations, 16 bits": _COMMON["representations, 16 bits"],
    **_weights("float32", "float32"),
    **_weights("bit", "int4"),
    **_default("bit", "int4"),
}
_EXCHANGED, _BOTH = "what is exchanged", "bytes per learner and round, both ways"


def _cells(scale: Scale) -> list[Cell]:
    """Ten learners; the quick version: MNIST, fifteen rounds, a few compositions."""
    compositions = {"MNIST": _QUICK_COMPOSITIONS} if scale.quick else _COMPOSITIONS
    found = []
    for task, methods in compositions.items():
        settings: dict[str, Any] = {**TASKS[task], **scale.settings(_SEEDS[task]), "learners": 10}
        settings |= _QUICK if scale.quick else {}
        settings |= {"eval_every": settings["rounds"]}
        found += [Cell({"task": task, "row": row}, {**settings, "method": each}) for row, each in methods.items()]
    return found


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One section per task, from the cheapest composition to the most expensive."""
    ranked = sorted(outcomes, key=lambda o: both_ways(o.summary["bytes"]))
    tasks = dict.fromkeys(o.labels["task"] for o in outcomes)
    return [_section(task, [o for o in ranked if o.labels["task"] == task]) for task in tasks]


def _section(task: str, ranked: Sequence[Outcome]) -> ResultSection:
    about, summary, default = TASKS[task], ranked[0].summary, settings_of("consilience")
    usual = weights_name(*(default[key] for key in ("up", "down", "every")))
    text = (
        f"{task}, {about['model']}, {about['train']:,} images among ten learners, {summary['rounds']} rounds, "
        f"{plural(summary['seeds'], 'seed')}: the bytes that a learner uploads and downloads in a round, the mean over "
        "rounds, and the accuracy in % after the last round. weights: the method `fedavg` with these encodings; "
        f"representations + weights: the method `consilience`, whose default is {usual}."
    )
    heading = f"Accuracy against bytes, {task}"
    return ResultSection(heading, text, [_row(o) for o in ranked], _figure(ranked), f"frontier-{task.lower()}")


def _row(outcome: Outcome) -> dict[str, Any]:
    sent = outcome.summary["bytes"]
    return {
        _EXCHANGED: outcome.labels["row"],
        "bytes uploaded": round(sent["up"]),
        "bytes downloaded": round(sent["down"]),
        "both": round(both_ways(sent)),
        "accuracy": format_accuracy(outcome),
    }


def _figure(ranked: Sequence[Outcome]) -> Callable[[], Any]:
    rows = [
        {
            _EXCHANGED: outcome.labels["row"],
            _BOTH: round(both_ways(outcome.summary["bytes"])),
            "accuracy": outcome.summary["accuracy"]["mean"],
        }
        for outcome in ranked
    ]

    def figure() -> Any:
        from consilience.presentation.scatter_charts import frontier

        return frontier(rows, _BOTH, "accuracy", _EXCHANGED)

    return figure


FRONTIER = Reproduction("frontier", "Accuracy against bytes for compositions of exchanges", _cells, _sections)
