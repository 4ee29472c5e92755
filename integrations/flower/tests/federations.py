"""The federation of the example: three wards, three architectures, and what a simulation of it gives."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from consilience_flower import NodeTraining, member_app
from consilience_flower.gateway import RelayGateway
from consilience_flower.member import Training
from consilience_flower.run import FederationRun
from consilience_flower.settings import FederationSettings
from flwr.app import Context
from local_grid import LocalGrid, LocalNode
from wards.client_app import training
from wards.models import CLASSES, MODELS, SHAPE, WIDTH, mlp

from consilience import simulate
from consilience.channels import Answer
from consilience.config.overrides import parse_method
from consilience.peer.charter_means import MeanRules
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.peer.state_folder import StateFolder
from consilience.simulation.federation import Federation
from consilience.simulation.result import Result

WARDS, SEED, TRAIN = 3, 3, 360
Held = dict[str, dict[str, np.ndarray]]
"""Answers by channel: tensors by name, and the count."""


def write_wards(file: Path, method: str = "representation-sharing", *, alike: bool = False, **rules: Any) -> Path:
    """The charter of the wards. alike: of wards with one architecture, for methods that share weights."""
    task = TaskShape(SHAPE, CLASSES, WIDTH)
    models = [mlp] if alike else list(MODELS)
    name = file.stem
    charter, starts = create_charter(
        name, parse_method(method), task, models, seed=SEED, means=MeanRules(defaults=False), **rules
    )
    write_charter(file, charter, starts)
    return file


def alike(context: Context) -> NodeTraining:
    """A ward that trains the same architecture as the others."""
    return NodeTraining(training(context).data, mlp)


def ward(folder: Path, number: int, charter: Path | None = None) -> dict[str, str | int]:
    """The node configuration of a ward. charter: its own copy."""
    own = {} if charter is None else {"consilience-charter": str(charter)}
    name = f"ward-{number}"
    return {"ward": number, "consilience-member": name, "consilience-folder": str(folder / name), **own}


def member(folder: Path, number: int, train: Training = training, charter: Path | None = None) -> LocalNode:
    """A node of a local grid that is a ward. charter: its own copy."""
    return LocalNode(member_app(train), ward(folder, number, charter))


def run_locally(grid: LocalGrid, folder: Path, rounds: int, **more: Any) -> list[dict[str, Any]]:
    """Run the federation of `wards.toml` in a folder on a local grid; the lines that the server has written."""
    settings = FederationSettings(folder / "wards.toml", folder / "wards.db", rounds=rounds, **more)
    with RelayGateway(settings.store, settings.charter) as relay:
        FederationRun(grid, relay, settings).run()
    return results(settings.results)


def simulate_wards(rounds: int, method: str = "representation-sharing", *, alike: bool = False) -> Result:
    """The same federation in the simulator."""
    models = mlp if alike else list(MODELS)
    return simulate(
        method=method, data="digits", train=TRAIN, model=models, learners=WARDS, rounds=rounds, seed=SEED, workers=0
    )


@contextmanager
def recorded_answers() -> Iterator[list[dict[str, list[Held]]]]:
    """What every learner of a simulation downloads: by learner, for each channel, its answers one after the other."""
    found: dict[int, dict[str, list[dict[str, np.ndarray]]]] = defaultdict(lambda: defaultdict(list))
    original: Callable[..., Any] = Federation.answers

    def answers(self: Federation, name: str, readers: np.ndarray, *when: int, **more: Any) -> Any:
        answer, which = original(self, name, readers, *when, **more)
        for reader, row in zip(readers, which, strict=True):
            tensors = {k: t[int(row)].numpy(force=True).copy() for k, t in answer.tensors.items()}
            tensors["count"] = np.asarray(answer.count[int(row)], dtype=np.float64).copy()
            found[int(reader)][name].append(tensors)
        return answer, which

    Federation.answers = answers  # type: ignore[method-assign]
    try:
        listed: list[Any] = []
        yield listed
        listed.extend(found[learner] for learner in sorted(found))
    finally:
        Federation.answers = original  # type: ignore[method-assign]


def held_answers(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """The answers that a node holds, by channel."""
    loaded = StateFolder(folder).load()
    assert loaded is not None
    return {name: _arrays(answer) for name, answer in loaded[1].answers.items()}


def _arrays(answer: Answer) -> dict[str, np.ndarray]:
    return {**{k: np.asarray(v) for k, v in answer.tensors.items()}, "count": np.asarray(answer.count, np.float64)}


def results(file: Path) -> list[dict[str, Any]]:
    """The lines that the server has written, by round and member."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["round"], line["member"]))
