"""Three real processes over zenoh with certificates, no server: the simulator's numbers, also after one was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.config.config import Config, make_config
from consilience.config.overrides import parse_method
from consilience.data.local_datasets import make_local_datasets
from consilience.peer.create_charter import TaskShape, create_charter
from consilience.simulation.result import Result
from consilience.simulation.setup.inputs import load_data
from consilience.simulation.simulate import simulate
from tests.direct_tools import NAMES, Wards
from tests.peer.test_trainer import Child

ROUNDS, HEAD = 4, 420


class Members:
    """Three processes, each with the samples that a simulated learner of its number has."""

    def __init__(self, folder: Path, method: str, kind: str = "tls") -> None:
        self.folder, self.kind, self.wards = folder, kind, Wards(folder / "wards")
        settings = {"data": "digits", "learners": 3, "rounds": ROUNDS, "train": 360, "seed": 3, "workers": 0}
        self.config: Config = make_config({**settings, "method": parse_method(method)})
        data, seed = load_data(self.config), self.config.federation.seed
        shape = TaskShape(data.shape, data.classes)
        self.wards.write(create_charter("wards", parse_method(method), shape, ["mlp"], seed=seed)[0])
        (folder / "config.toml").write_text(self.config.to_toml())
        parts = make_local_datasets(data, 3, partition="iid", shift="none", seed=seed).parts
        for name, part in zip(NAMES, parts, strict=True):
            own = np.sort(part)
            np.savez(
                folder / f"{name}.npz",
                inputs=data.inputs[own],
                targets=data.targets[own],
                test_inputs=data.test_inputs,
                test_targets=data.test_targets,
                classes=data.classes,
                scaling=data.scaling.of_pixels,
            )
        self.children = {name: Child() for name in NAMES}

    def arguments(self, name: str) -> str:
        network = json.dumps(self.wards.settings(name, self.kind))
        files = [self.folder / f"peer-{name}", self.folder / "config.toml", self.folder / f"{name}.npz"]
        return json.dumps([network, "", *map(str, files)])

    def begin_join(self, name: str) -> None:
        self.children[name].begin(f"join {self.arguments(name)}")

    def all(self, step: str, names: tuple[str, ...] = NAMES) -> list[Any]:
        """The same step in all processes at once; what each returns."""
        for name in names:
            self.children[name].begin(step)
        return [self.children[name].result() for name in names]

    def save(self, names: tuple[str, ...] = NAMES) -> None:
        for name in names:
            self.children[name].do(f"save {self.folder / f'peer-{name}'}")

    def kill(self, name: str) -> None:
        """End a member as a power failure would, and start a new process for it."""
        child = self.children[name]
        child.process.kill()
        child.process.wait()
        for stream in (child.process.stdin, child.process.stdout):
            assert stream is not None
            stream.close()
        self.children[name] = Child()


@pytest.fixture
def members(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Members]:
    found = Members(tmp_path, *request.param)
    for name in NAMES:
        found.begin_join(name)
    for name in NAMES:
        assert found.children[name].result() is True
    try:
        yield found
    finally:
        for child in found.children.values():
            child.end()


def assert_same_as(result: Result, rounds: list[list[dict[str, Any]]]) -> None:
    """Accuracies and losses are the simulator's, to the bit."""
    for key in ("accuracy", "loss.cross_entropy"):
        mine = [[_metric(each, key) for each in round_] for round_ in rounds]
        np.testing.assert_array_equal(np.array(mine), result.history[key][:, 0])


def _metric(told: dict[str, Any], key: str) -> float:
    name = key.removeprefix("loss.")
    return float(told[name] if key == name else told["losses"][name])


@pytest.mark.parametrize(
    "members",
    [("representation-sharing",), ("federated-distillation",), ("fedproto:encoding=int8", "iroh")],
    indirect=True,
)
def test_members_without_a_relay_give_the_simulator_s_results(members: Members, tmp_path: Path) -> None:
    members.all("start")
    rounds = [members.all("round") for _ in range(ROUNDS)]
    result = simulate(members.config)
    assert_same_as(result, rounds)
    for number, round_ in enumerate(rounds, 1):
        assert all(told["members"] == dict.fromkeys(NAMES, number) for told in round_)
    # The bytes of a round, beside the relay's: the same body to and from each of the others, with its head.
    body = float(result.history.records[2]["bytes.up"][0][0])
    sent = [sum(round_[i]["bytes_up"] for round_ in rounds) / ROUNDS for i in range(3)]
    for each in sent:
        assert 2 * body < each <= 2 * (body + HEAD)


@pytest.mark.parametrize("members", [("representation-sharing",)], indirect=True)
def test_a_killed_member_continues_with_its_round(members: Members, tmp_path: Path) -> None:
    members.all("start")
    rounds = [members.all("round") for _ in range(2)]
    members.save()
    for name in NAMES:  # round 3 is published by all, and west is killed before it has saved it
        members.children[name].begin("round")
    third = [members.children[name].result() for name in NAMES]
    members.kill("west")
    for name in ("north", "south"):
        members.children[name].begin("round")  # they wait in round 4
    members.children["west"].do(f"join {members.arguments('west')}")
    assert members.children["west"].do(f"resume {tmp_path / 'peer-west'}") is True
    again = members.children["west"].do("round")
    assert {k: again[k] for k in ("round", "accuracy", "losses")} == {
        k: third[2][k] for k in ("round", "accuracy", "losses")
    }
    last = members.children["west"].do("round")
    fourth = [*(members.children[name].result() for name in ("north", "south")), last]
    assert_same_as(simulate(members.config), [*rounds, third, fourth])


@pytest.mark.parametrize("members", [("representation-sharing",)], indirect=True)
def test_a_member_killed_in_the_first_round_repeats_it_with_the_same_bits(members: Members, tmp_path: Path) -> None:
    members.all("start")
    members.save()  # as `consilience join` does
    first = members.all("round")
    members.kill("west")
    for name in ("north", "south"):
        members.children[name].begin("round")  # they wait in round 2
    members.children["west"].do(f"join {members.arguments('west')}")
    assert members.children["west"].do(f"resume {tmp_path / 'peer-west'}") is True
    again = members.children["west"].do("round")
    same = ("round", "accuracy", "losses")
    assert {k: again[k] for k in same} == {k: first[2][k] for k in same}
    last = members.children["west"].do("round")
    rounds = [first, [*(members.children[name].result() for name in ("north", "south")), last]]
    rounds += [members.all("round") for _ in range(2)]
    assert_same_as(simulate(members.config), rounds)


@pytest.mark.parametrize("members", [("representation-sharing",)], indirect=True)
def test_a_member_killed_while_it_trains_is_awaited(members: Members, tmp_path: Path) -> None:
    members.all("start")
    rounds = [members.all("round") for _ in range(2)]
    members.save()
    members.kill("south")
    for name in ("north", "west"):
        members.children[name].begin("round")
    members.children["south"].do(f"join {members.arguments('south')}")
    assert members.children["south"].do(f"resume {tmp_path / 'peer-south'}") is True
    back = members.children["south"].do("round")
    north, west = (members.children[name].result() for name in ("north", "west"))
    rounds += [[north, back, west], members.all("round")]
    assert_same_as(simulate(members.config), rounds)
