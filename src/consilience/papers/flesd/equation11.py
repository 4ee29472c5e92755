"""FLESD's equation 11 in bytes: representations of a public set against weights; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import model_factory
from consilience.objectives import build_objective
from consilience.optimizers import Adam
from consilience.papers.cells import ResultSection
from consilience.papers.flesd.experiment import LEARNERS, OBJECTIVE
from consilience.task import Public, Task
from consilience.wire.byte_count import ByteCount

_SHAPE, _CLASSES = (3, 32, 32), 10
_MODELS = ("encoder18", "encoder50")
_PUBLIC = (1_000, 3_333, 10_000, 50_000)
_FORMS: dict[str, dict[str, Any]] = {
    "float32": {"form": "pool"},
    "float16": {"form": "pool", "encoding": "float16"},
    "int8": {"form": "pool", "encoding": "int8"},
    "similarities": {"form": "mean"},
}
_ROUNDS = 2  # of FLESD as published, over which the bytes of the public set are spread


@cache
def task_with_model(model: str, shape: tuple[int, ...] = _SHAPE, classes: int = _CLASSES) -> Task:
    """The task of a learner with this model."""
    role = Role(build_objective(OBJECTIVE))  # with the projection head, which FedAvg uploads too
    return Learner(LearnerSpec(model_factory(model, shape, classes), role, Adam(), shape, model)).task


def message_bytes_by_role(method: str, task: Task, public: int = 0, **settings: Any) -> dict[str, dict[str, int]]:
    """Bytes that each role uploads and downloads, as encoded; public: samples of the public set."""
    known = replace(task, public=Public(public)) if public else task
    found = {}
    for name, role in build_method(method, settings).roles.items():
        channels = {e.name: e.for_federation(LEARNERS).channel(known) for e in role.exchanges}
        moving = {each for each, channel in channels.items() if channel.moves}
        traffic = ByteCount(channels)
        found[name] = {
            "up": traffic.up(role.uploading),
            "down": traffic.down(role.downloading | role.uploading & moving),
        }
    return found


def equation11_sections() -> list[ResultSection]:
    """The upload of a learner, and how often FLESD may communicate before it uploads more than FedAvg."""
    return [
        ResultSection(
            "Upload of a learner per round, bytes",
            "Whole messages as encoded: representations of the public set with 32, 16 and 8 bits per value, or the "
            "similarities of its pairs, which a mean channel averages; and weights. A learner downloads the public "
            "set once, at one byte per value, or in every round if it has no room to keep it.",
            [_upload_row(model, public) for model, public in _settings()],
            name="sent",
        ),
        ResultSection(
            "Equation 11: how many rounds of FLESD cost as much as one round of FedAvg?",
            "FLESD uploads less than FedAvg if it has at most this many rounds for each round of FedAvg. The other "
            f"columns add the public set, either sent once, whose bytes are spread over {_ROUNDS} rounds, or sent in "
            "each round, and the download, which is a whole model in both methods. Published: 10,000 images and "
            "ResNet18, 5.12 million values "
            "against 11 million, which is 2.1.",
            [_ratio_row(model, public) for model, public in _settings()],
            name="equation-11",
        ),
    ]


def _settings() -> Iterator[tuple[str, int]]:
    return ((model, public) for model in _MODELS for public in _PUBLIC)


def _up(model: str, public: int, form: str) -> int:
    """The upload of a learner, in its role of witness."""
    return message_bytes_by_role("flesd", task_with_model(model), public, **_FORMS[form])["witness"]["up"]


def _upload_row(model: str, public: int) -> dict[str, Any]:
    weights, shared = (
        message_bytes_by_role("fedavg", task_with_model(model))["learner"]["up"],
        _up(model, public, "float32"),
    )
    return {
        "model": model,
        "public images": public,
        **{form: _up(model, public, form) for form in _FORMS},
        "weights": weights,
        "float32 / weights": f"{shared / weights:.2f}",
        "public set": public * prod(_SHAPE),
    }


def _ratio_row(model: str, public: int) -> dict[str, Any]:
    task, images = task_with_model(model), public * prod(_SHAPE)
    sent = {"once": images / _ROUNDS, "each round": images}
    common = message_bytes_by_role("fedavg", task)["learner"]
    line: dict[str, Any] = {"model": model, "public images": public}
    for form in ("float32", "int8"):
        roles = message_bytes_by_role("flesd", task, public, **_FORMS[form])
        up, down = roles["witness"]["up"], roles["learner"]["down"]
        line[form] = f"{common['up'] / up:.2f}"
        for when, extra in sent.items():
            line[f"{form}, public set {when}"] = f"{common['up'] / (up + extra):.2f}"
            line[f"{form}, public set {when}, both ways"] = f"{sum(common.values()) / (up + extra + down):.2f}"
    return line
