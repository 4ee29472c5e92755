"""Predictions as a table, and how good they are, for each kind of task."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from consilience.export.card import InputDescription
from consilience.export.samples import NamedSamples
from consilience.kinds import kind_of
from consilience.kinds.regression import standardized
from consilience.task import Task, TaskKind

Row = list[str]


def outputs_of(logits: Tensor, inputs: InputDescription) -> Tensor:
    """Probabilities of classes or of labels, (n, outputs), or numbers in the user's unit, (n, 1)."""
    target = inputs.target
    found: dict[TaskKind, Callable[[], Tensor]] = {
        "single-label": lambda: logits.softmax(1),
        "multi-label": lambda: logits.sigmoid(),
        "regression": lambda: logits * target.std + target.mean,
    }
    return found[target.kind]()


def prediction_rows(samples: NamedSamples, outputs: np.ndarray, inputs: InputDescription) -> Iterator[Row]:
    """The heading, and a row for each sample.

    Of classes the most probable one and its probability; of labels the probability and the decision of each, 0 or 1; of
    a regression the number. What is known of the samples comes after it.
    """
    return _ROWS[inputs.target.kind](samples, outputs, inputs.class_names)


def describe_known(samples: NamedSamples, outputs: np.ndarray, inputs: InputDescription) -> str:
    """How good the predictions are of samples of which the truth is known; "" where it is not."""
    target, names = inputs.target, inputs.class_names
    if target.kind == "single-label":
        predicted = (names[number] for number in outputs.argmax(1))
        known = [label == each for label, each in zip(samples.labels, predicted, strict=False) if label]
        return f", {100 * sum(known) / len(known):.2f} % of {len(known)} labels predicted correctly" if known else ""
    if samples.targets is None:
        return ""
    kind, task = kind_of(target), Task(inputs.classes, 0, target=target)
    truth = standardized(target, samples.targets)
    logits = torch.logit(torch.from_numpy(outputs)) if target.kind == "multi-label" else _standard(outputs, inputs)
    sums = kind.score_sums(task, logits, torch.from_numpy(truth)).numpy()
    totals = kind.totals(target, inputs.classes, truth)
    said = [f"{kind.metric.name} {float(kind.score(sums, totals)):.2f} %"]
    said += [f"{name.upper()} {float(v):.4g}" for name, v in kind.further_scores(target, sums, totals).items()]
    return f", {', '.join(said)} of {len(truth)} known"


def _standard(outputs: np.ndarray, inputs: InputDescription) -> Tensor:
    return torch.from_numpy(standardized(inputs.target, outputs))


def _class_rows(samples: NamedSamples, outputs: np.ndarray, names: list[str]) -> Iterator[Row]:
    labels = samples.labels
    yield ["sample", "predicted", "probability", *(["label"] if labels else [])]
    for i, (name, best) in enumerate(zip(samples.names, outputs.argmax(1), strict=True)):
        yield [name, names[best], f"{outputs[i, best]:.6f}", *([labels[i]] if labels else [])]


def _label_rows(samples: NamedSamples, outputs: np.ndarray, names: list[str]) -> Iterator[Row]:
    known = samples.targets
    pairs = [column for name in names for column in (f"probability of {name}", name)]
    yield ["sample", *pairs, *([f"known {name}" for name in names] if known is not None else [])]
    for i, name in enumerate(samples.names):
        cells = [cell for value in outputs[i] for cell in (f"{value:.6f}", str(int(value > 0.5)))]
        yield [name, *cells, *(map(str, known[i].tolist()) if known is not None else ())]


def _number_rows(samples: NamedSamples, outputs: np.ndarray, names: list[str]) -> Iterator[Row]:
    known = samples.targets
    yield ["sample", "predicted", *(["known"] if known is not None else [])]
    for i, name in enumerate(samples.names):
        yield [name, f"{outputs[i, 0]:.6g}", *([f"{known[i]:.6g}"] if known is not None else [])]


_ROWS: dict[TaskKind, Callable[[NamedSamples, np.ndarray, list[str]], Iterator[Row]]] = {
    "single-label": _class_rows,
    "multi-label": _label_rows,
    "regression": _number_rows,
}
