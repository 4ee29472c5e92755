"""What travels, counted and not trained: by method and model, and how it grows (Berdoz 2022, sections 3 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.learner.learner import Learner, LearnerSpec
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import describe, model_factory
from consilience.optimizers import Adam
from consilience.papers.cells import Cell, Outcome, Reproduction, Scale, Shown
from consilience.wire.byte_count import ByteCount

_TASKS = {
    "LeNet5, MNIST": ("lenet5", (1, 28, 28), 1200),
    "ResNet9, Fashion-MNIST": ("resnet9", (1, 28, 28), 6000),
    "ResNet18, CIFAR-10": ("resnet18", (3, 32, 32), 10_000),
}
_CLASSES, _FLOAT = 10, 4
_METHODS = ("fedavg", "federated-distillation", "representation-sharing", "fedavg-1bit", "consilience")
_CLAIMED = {"ResNet9, Fashion-MNIST": 1000, "ResNet18, CIFAR-10": 2000}


def volume(
    method: str,
    model: str,
    shape: tuple[int, ...],
    classes: int = _CLASSES,
    width: int | None = None,
    **settings: Any,
) -> dict[str, int]:
    """Bytes of a learner's whole message, each way, as encoded."""
    role: Role = next(iter(build_method(method, settings).roles.values()))
    learner = Learner(LearnerSpec(model_factory(model, shape, classes, width), role, Adam(), shape, model))
    traffic = ByteCount(learner.channels)
    return {"up": traffic.up(learner.uploading), "down": traffic.down(learner.receiving)}


def _by_model() -> list[dict[str, Any]]:
    lines = []
    for task, (model, shape, samples) in _TASKS.items():
        width = describe(model, shape, _CLASSES)["width"]
        volumes = {method: volume(method, model, shape) for method in _METHODS}
        shared = volumes["representation-sharing"]["up"]
        lines.append(
            {
                "task": task,
                **{f"{method}, bytes up": v["up"] for method, v in volumes.items()},
                "fedavg / representations": round(volumes["fedavg"]["up"] / shared, 1),
                "claimed about": _CLAIMED.get(task),
                "fedavg / consilience": round(volumes["fedavg"]["up"] / volumes["consilience"]["up"], 1),
                "split learning, bytes up (10 learners)": samples // 10 * width * _FLOAT,
            }
        )
    return lines


def _growth() -> list[dict[str, Any]]:
    """How a learner's message grows with classes, feature width and observations."""
    usual: dict[str, Any] = {"method": "representation-sharing", "model": "resnet9", "shape": (1, 28, 28)}
    grown: dict[str, dict[str, Any]] = {f"C = {c} classes": {"classes": c} for c in (10, 100, 1000)}
    grown |= {f"d' = {d} features": {"width": d} for d in (32, 128, 512)}
    grown |= {f"M = {m} observations up": {"up": m} for m in (1, 5, 10)}
    grown |= {f"M = {m} observations down": {"down": m} for m in (1, 5, 10)}
    return [{"what": what, **volume(**usual, **changes)} for what, changes in grown.items()]


def _by_learners() -> list[dict[str, Any]]:
    """What all learners of a federation send in a round; split learning sends the cut layer of every sample instead."""
    model, shape, samples = _TASKS["ResNet9, Fashion-MNIST"]
    width = describe(model, shape, _CLASSES)["width"]
    volumes = {method: volume(method, model, shape)["up"] for method in _METHODS}
    return [
        {
            "learners": f"N = {learners:,}",
            **{method: learners * up for method, up in volumes.items()},
            "split learning": samples * width * _FLOAT,
        }
        for learners in (2, 10, 100, 1000)
    ]


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """Nothing was run: sizes are known from what is declared."""
    text = (
        "A learner's message in a round as it is encoded, headers included. The thesis speaks of about 1000 times "
        "fewer bits for ResNet9 and 2000 for ResNet18; counted with class counts, both means and headers, it is what "
        "stands here. Split learning sends the cut layer of every sample."
    )
    return [
        Shown("Bytes by method and model", text, _by_model(), name="volumes"),
        Shown(
            "How a message of representation sharing grows",
            "Bytes of a learner in a round; C = 10, d' = 128 and M = 1 where nothing else is said. It grows with C, d' "
            "and M, each in a straight line, and neither with the number of learners nor with that of samples.",
            _growth(),
            name="growth",
        ),
        Shown(
            "What a whole federation sends in a round, bytes up",
            "ResNet9 and 6,000 Fashion-MNIST images, however many learners they are dealt to.",
            _by_learners(),
            name="learners",
        ),
    ]


def cells(scale: Scale) -> list[Cell]:
    """None."""
    return []


COMMUNICATION = Reproduction(
    "thesis-communication", "Bytes of methods and models beside the claims, and how they grow", cells, told
)
