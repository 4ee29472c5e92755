"""What is known of the built-in methods before torch is imported: their names, summaries and settings.

It repeats what the functions of `consilience.methods.builtin` declare, because importing them imports torch;
`tests/cli/test_known_methods.py` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from consilience.task import TaskKind

_ALL: tuple[TaskKind, ...] = get_args(TaskKind)
_CLASSES: tuple[TaskKind, ...] = ("single-label",)
_OBJECTIVE = {"objective": "cross-entropy", "own_head": False}
_OWN_MODEL = {**_OBJECTIVE, "own_model": False}
_CLASS_MEANS = {"encoding": "float32", "weighting": "samples"}
_WEIGHTS = {"up": "float32", "down": "float32", "step": 1.0}
_FLESD = {
    "objective": "simclr",
    "distill": "distiller",
    "distill_epochs": 200,
    "distill_batch": 128,
    "distill_lr": 0.001,
    "temperature": 0.1,
    "student_temperature": 0.1,
    "momentum": 0.999,
    "queue": 2048,
    "form": "auto",
    "down": 0,
    "width": 0,
    "keep": 1.0,
    "encoding": "float32",
}


@dataclass(frozen=True)
class KnownMethod:
    """A method's summary, its settings with their defaults as a settings file writes them, and the tasks it serves."""

    summary: str
    settings: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[TaskKind, ...] = _ALL


BUILT_IN = {
    "centralized": KnownMethod("One learner holds all data: the yardstick, not a federation.", _OBJECTIVE),
    "independent": KnownMethod("Every learner trains alone.", {**_OBJECTIVE, "batch_order": 0}),
    "self-distillation": KnownMethod(
        "Representation sharing of each learner with itself only: the control for mere regularization.",
        {"kd": 10.0, "contrast": 1.0, "n_avg": 10, **_OBJECTIVE},
    ),
    "federated-distillation": KnownMethod(
        "Mean logits of each class, distilled (Jeong et al. 2018).", {"kd": 10.0, **_CLASS_MEANS}
    ),
    "fedavg": KnownMethod(
        "The mean of all learners' weights (McMahan et al. 2017).",
        {"start": "common", "part": "trained", "every": 1, "buffers": "share", **_WEIGHTS, **_OWN_MODEL},
    ),
    "fedprox": KnownMethod(
        "FedAvg with training held near the common weights (Li et al. 2020).",
        {"mu": 0.01, "start": "common", "part": "trained", "every": 1, **_WEIGHTS, **_OWN_MODEL},
    ),
    "fedproto": KnownMethod(
        "Mean features of each class, distilled (Tan et al. 2022).",
        {"kd": 10.0, **_CLASS_MEANS, "dimensions": 1.0, "subspace": "first", **_OBJECTIVE},
    ),
    "representation-sharing": KnownMethod(
        "Mean features distilled, and contrasted with a random member's (Berdoz et al. 2022).",
        {
            "kd": 10.0,
            "contrast": 1.0,
            "n_avg": 10,
            "up": 1,
            "down": 1,
            "discriminator": "classifier",
            **_CLASS_MEANS,
            "min_count": 2,
            "dimensions": 1.0,
            "subspace": "first",
            "means": "global",
            **_OBJECTIVE,
        },
        _CLASSES,
    ),
    "fedavg-1bit": KnownMethod(
        "FedAvg at one bit per weight, both ways, with error feedback.",
        {"every": 1, "start": "common", "up": "bit", "down": "bit", "step": 1.0, **_OWN_MODEL},
    ),
    "consilience": KnownMethod(
        "The default method: representations in 16 bits, weights at 1 bit up and 4 down, a common and an own answer.",
        {
            "kd": 0.3,
            "contrast": 0.3,
            "n_avg": 10,
            "scale": "relative",
            "weighting": "samples",
            "up": "bit",
            "down": "int4",
            "step": 1.5,
            "every": 1,
            "objective": "calibrated",
            "own_head": True,
            "own_model": True,
        },
    ),
    "two-stage": KnownMethod(
        "A private part that reveals little of its inputs, below a common part that votes move (Ma et al. 2020).",
        {
            "alpha_1": 0.1,
            "alpha_2": 1.0,
            "lam": 1.0,
            "delta": 0.001,
            "device": "private",
            "start": "common",
            "inner": "round",
            "batches": 0,
            "calibrated": False,
        },
        _CLASSES,
    ),
    "split-learning": KnownMethod(
        "Learners take turns at a server that has the upper part of the model (Gupta and Raskar 2018).",
        {"cut": "", "device": "handed-on"},
        _CLASSES,
    ),
    "cluster-sharing": KnownMethod(
        "Learning without labels: mean features of common clusters, toward which features are pulled.",
        {"clusters": 20, "kd": 0.3, "start": "common", "encoding": "float32", "objective": "simclr"},
        _CLASSES,
    ),
    "flesd": KnownMethod(
        "Learning without labels: similarities of public samples, distilled (Shi et al. 2021).", _FLESD, _CLASSES
    ),
    "flesd-cc": KnownMethod("FLESD that communicates once, after all local epochs.", _FLESD, _CLASSES),
}
