"""Bytes per message by method and model, and how they grow; nothing is trained (Berdoz 2022, sections 3 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import model_factory, model_size
from consilience.optimizers import Adam
from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.wire.byte_count import ByteCount

_TASKS = {
    "LeNet5, MNIST": ("lenet5", (1, 28, 28), 1200),
    "ResNet9, Fashion-MNIST": ("resnet9", (1, 28, 28), 6000),
    "ResNet18, CIFAR-10": ("resnet18", (3, 32, 32), 10_000),
}
_CLASSES, _FLOAT = 10, 4
_METHODS = ("fedavg", "federated-distillation", "representation-sharing", "fedavg-1bit", "consilience")
_CLAIMED = {"ResNet9, Fashion-MNIST": 1000, "ResNet18, CIFAR-10": 2000}


def message_bytes(
    method: str,
    model: str,
    shape: tuple[int, ...],
    classes: int = _CLASSES,
    width: int | None = None,
    **settings: Any,
) -> dict[str, int]:
    """Bytes that a learner uploads and downloads in a round, as encoded."""
    role: Role = next(iter(build_method(method, settings).roles.values()))
    learner = Learner(LearnerSpec(model_factory(model, shape, classes, width), role, Adam(), shape, model))
    traffic = ByteCount(learner.channels)
    return {"up": traffic.up(learner.uploading), "down": traffic.down(learner.receiving)}


def _by_model() -> list[dict[str, Any]]:
    lines = []
    for task, (model, shape, samples) in _TASKS.items():
        width = model_size(model, shape, _CLASSES)["width"]
        volumes = {method: message_bytes(method, model, shape) for method in _METHODS}
        shared = volumes["representation-sharing"]["up"]
        lines.append(
            {
                "task": task,
                **{f"{method}, upload": v["up"] for method, v in volumes.items()},
                "fedavg / representations": round(volumes["fedavg"]["up"] / shared, 1),
                "claimed about": _CLAIMED.get(task),
                "fedavg / consilience": round(volumes["fedavg"]["up"] / volumes["consilience"]["up"], 1),
                "split learning, upload (10 learners)": samples // 10 * width * _FLOAT,
            }
        )
    return lines


def _growth() -> list[dict[str, Any]]:
    """How a message grows with classes, feature width and observations."""
    usual: dict[str, Any] = {"method": "representation-sharing", "model": "resnet9", "shape": (1, 28, 28)}
    grown: dict[str, dict[str, Any]] = {f"C = {c} classes": {"classes": c} for c in (10, 100, 1000)}
    grown |= {f"d' = {d} features": {"width": d} for d in (32, 128, 512)}
    grown |= {f"M = {m} observations uploaded": {"up": m} for m in (1, 5, 10)}
    grown |= {f"M = {m} observations downloaded": {"down": m} for m in (1, 5, 10)}
    return [_ways(changed, message_bytes(**usual, **changes)) for changed, changes in grown.items()]


def _ways(changed: str, ways: dict[str, int]) -> dict[str, Any]:
    return {"changed": changed, "upload": ways["up"], "download": ways["down"]}


def _by_learners() -> list[dict[str, Any]]:
    """The upload of all learners in a round; split learning uploads the output of the cut layer for every sample."""
    model, shape, samples = _TASKS["ResNet9, Fashion-MNIST"]
    width = model_size(model, shape, _CLASSES)["width"]
    volumes = {method: message_bytes(method, model, shape)["up"] for method in _METHODS}
    return [
        {
            "learners": f"N = {learners:,}",
            **{method: learners * up for method, up in volumes.items()},
            "split learning": samples * width * _FLOAT,
        }
        for learners in (2, 10, 100, 1000)
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """No run is needed: the schema of each exchange fixes the size of its messages."""
    text = (
        "The upload of a learner in a round in bytes, as encoded, with headers. The thesis claims about 1000 times "
        "fewer bits for ResNet9 and 2000 for ResNet18; the table also counts class counts, both means and headers. "
        "Split learning uploads the output of the cut layer for every sample."
    )
    return [
        ResultSection("Bytes by method and model", text, _by_model(), name="volumes"),
        ResultSection(
            "Growth of a message of representation sharing",
            "Bytes per learner and round; C = 10, d' = 128 and M = 1 unless stated otherwise. They grow linearly with "
            "C, d' and M, and depend neither on the number of learners nor on the number of samples.",
            _growth(),
            name="growth",
        ),
        ResultSection(
            "Upload of the whole federation per round, bytes",
            "ResNet9 and 6,000 Fashion-MNIST images, split among any number of learners.",
            _by_learners(),
            name="learners",
        ),
    ]


def _cells(scale: Scale) -> list[Cell]:
    """None: nothing is run."""
    return []


COMMUNICATION = Reproduction(
    "thesis-communication", "Bytes by method and model, the claimed ratios, and how bytes grow", _cells, _sections
)
