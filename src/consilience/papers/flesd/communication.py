"""FLESD's equation 11 in bytes: representations of a public set against weights, counted and not trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from consilience.learner.learner import Learner, LearnerSpec
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import model_factory
from consilience.objectives import build_objective
from consilience.optimizers import Adam
from consilience.papers.cells import Shown
from consilience.papers.flesd.experiment import LEARNERS, OBJECTIVE
from consilience.task import Public, Task
from consilience.wire.byte_count import ByteCount

Volume = dict[str, int]
_SHAPE, _CLASSES = (3, 32, 32), 10
_MODELS = ("encoder18", "encoder50")
_PUBLIC = (1_000, 3_333, 10_000, 50_000)
_FORMS: dict[str, dict[str, Any]] = {
    "float32": {"form": "pool"},
    "float16": {"form": "pool", "encoding": "float16"},
    "int8": {"form": "pool", "encoding": "int8"},
    "similarities": {"form": "mean"},
}
_ROUNDS = 2  # of FLESD as published: the public set's bytes are shared by so many


@cache
def task_of(model: str, shape: tuple[int, ...] = _SHAPE, classes: int = _CLASSES) -> Task:
    """What a learner with this model works on."""
    role = Role(build_objective(OBJECTIVE))  # with the projection head that FedAvg shares too
    return Learner(LearnerSpec(model_factory(model, shape, classes), role, Adam(), shape, model)).task


def volumes_of(method: str, task: Task, public: int = 0, **settings: Any) -> dict[str, Volume]:
    """Bytes of whole messages, each way and as encoded, by role; public: samples of the public set."""
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


def told() -> list[Shown]:
    """What a learner sends, and from which frequency on it is less than weights."""
    return [
        Shown(
            "What a learner sends up in a round, bytes",
            "Whole messages as they are encoded. Representations of the public set in 32, 16 and 8 bits a value, or "
            "the similarities of its pairs, which one mean holds; and weights. The public set is sent to a learner "
            "once, at a byte a value.",
            [_sent(model, public) for model, public in _settings()],
            name="sent",
        ),
        Shown(
            "Equation 11: how often may FLESD communicate where weights travel once?",
            "Representations are less as long as FLESD's rounds are at most so many for each round of weights, by what "
            f"goes up; with the public set, whose bytes are shared by {_ROUNDS} rounds; and both ways, where a learner "
            "hears the distilled weights in either. Published: 10,000 images and ResNet18, 5.12 million values against "
            "11 million, which is 2.1.",
            [_even(model, public) for model, public in _settings()],
            name="equation-11",
        ),
    ]


def _settings() -> Iterator[tuple[str, int]]:
    return ((model, public) for model in _MODELS for public in _PUBLIC)


def _up(model: str, public: int, form: str) -> int:
    """What a learner puts up, in its role of witness."""
    return volumes_of("flesd", task_of(model), public, **_FORMS[form])["witness"]["up"]


def _sent(model: str, public: int) -> dict[str, Any]:
    weights, shared = volumes_of("fedavg", task_of(model))["learner"]["up"], _up(model, public, "float32")
    return {
        "model": model,
        "public images": public,
        **{form: _up(model, public, form) for form in _FORMS},
        "weights": weights,
        "rounds of weights for one": f"{shared / weights:.2f}",
        "public set, once": public * prod(_SHAPE),
    }


def _even(model: str, public: int) -> dict[str, Any]:
    task, once = task_of(model), public * prod(_SHAPE) / _ROUNDS
    common = volumes_of("fedavg", task)["learner"]
    line: dict[str, Any] = {"model": model, "public images": public}
    for form in ("float32", "int8"):
        roles = volumes_of("flesd", task, public, **_FORMS[form])
        up, down = roles["witness"]["up"], roles["learner"]["down"]
        line[form] = f"{common['up'] / up:.2f}"
        line[f"{form}, with the public set"] = f"{common['up'] / (up + once):.2f}"
        line[f"{form}, both ways"] = f"{sum(common.values()) / (up + once + down):.2f}"
    return line
