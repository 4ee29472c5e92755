"""Members of several roles over a relay give the simulator's results, each process at its own pace."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.config.config import Config, make_config
from consilience.config.overrides import parse_method
from consilience.data import Dataset
from consilience.data.local_datasets import make_local_datasets
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.relay import admin
from consilience.simulation.setup.inputs import load_data
from consilience.simulation.simulate import simulate
from tests.peer.test_trainer import Child, assert_common_values
from tests.peer.test_trainer import processes as processes
from tests.relay_tools import serving

MEMBERS, ROUNDS = 3, 2
SMALL = "distill_epochs=2:distill_batch=32:queue=64"


def settings(method: str) -> Config:
    common = {"data": "digits", "learners": MEMBERS, "rounds": ROUNDS, "train": 180, "test": 200, "seed": 3}
    return make_config({**common, "workers": 0, "method": parse_method(method)})


def public_samples(data: Dataset, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The samples of each member, and those of the first, which are the public set."""
    parts = [np.sort(p) for p in make_local_datasets(data, MEMBERS, partition="iid", shift="none", seed=seed).parts]
    return parts, data.inputs[parts[0]]


@contextlib.contextmanager
def joined(processes: list[Child], folder: Path, config: Config) -> Iterator[None]:
    """Three members of a federation on digits, each with the samples that a simulated learner of its number has."""
    data, seed = load_data(config), config.federation.seed
    parts, public = public_samples(data, seed)
    method = {**config.method.settings, "name": config.method.name}
    task = TaskShape(data.shape, data.classes, learners=MEMBERS, public=public)
    write_charter(folder / "digits.toml", *create_charter("digits", method, task, ["mlp"], seed=seed))
    store = folder / "relay.db"
    admin.create(store, folder / "digits.toml")
    (folder / "config.toml").write_text(config.to_toml())
    np.save(folder / "public.npy", public)
    with serving(store) as running:
        for number, (child, own) in enumerate(zip(processes, parts, strict=True)):
            arrays: dict[str, Any] = {
                "inputs": data.inputs[own],
                "targets": data.targets[own],
                "scaling": data.scaling.of_pixels,
            }
            arrays |= {"test_inputs": data.test_inputs, "test_targets": data.test_targets, "classes": data.classes}
            np.savez(folder / f"{number}.npz", **arrays)
            token = str(admin.invite(store, f"m{number}"))
            places = (folder / f"peer-{number}", folder / "config.toml", folder / f"{number}.npz")
            child.do(f"join {json.dumps([running.url, token, *map(str, places), str(folder / 'public.npy')])}")
        yield
        for child in processes:
            child.do("leave")


def all_at_once(processes: list[Child], step: str) -> list[Any]:
    """What each process prints after a step that all of them take at the same time."""
    for child in processes:
        child.begin(step)
    return [child.result() for child in processes]


def run_in_step(processes: list[Child], roles: int) -> list[dict[str, Any]]:
    """A round in which nobody is a step ahead of the others."""
    for step in range(roles):
        for child in processes:
            child.do(f"act {step}")
        for child in processes:
            child.do("exchange")
    return [child.do("finish") for child in processes]


def assert_same(rounds: list[list[dict[str, Any]]], config: Config, folder: Path, terms: dict[str, list[int]]) -> None:
    """The loss terms of some members, and the bytes of all, are those of the simulation."""
    result = simulate(config, out=folder / "run")
    assert len(result.history.records) == len(rounds) + 1
    for term, members in terms.items():
        mine = [[round_[member]["losses"][term] for member in members] for round_ in rounds]
        np.testing.assert_array_equal(np.array(mine), result.history[f"loss.{term}"][:, 0][:, members])
    assert all(each["acknowledged"] for round_ in rounds for each in round_)
    for key, way in (("bytes_up", "bytes.up"), ("bytes_down", "bytes.down")):
        counted = [[each[key] for each in round_] for round_ in rounds]
        np.testing.assert_array_equal(counted, [record[way][0] for record in result.history.records[1:]])


@pytest.mark.parametrize("form", ["pool", "mean"])
def test_a_distiller_and_two_learners(processes: list[Child], tmp_path: Path, form: str) -> None:
    """Each process runs its rounds at its own pace: who needs the others' uploads waits for them."""
    config = settings(f"flesd:{SMALL}:form={form}")
    with joined(processes, tmp_path, config):
        rounds = [all_at_once(processes, "round") for _ in range(ROUNDS)]
        assert_same(rounds, config, tmp_path, {"simclr": [1, 2], "similarity": [0]})
        assert_common_values(tmp_path, "weights")
    assert all(each["losses"]["similarity"] > 0 for each in [round_[0] for round_ in rounds])


def test_everybody_distills(processes: list[Child], tmp_path: Path) -> None:
    """Without a distiller each member learns from the others' similarities, and the host from those of all."""
    config = settings(f"flesd:{SMALL}:distill=learner")
    with joined(processes, tmp_path, config):
        rounds = [run_in_step(processes, roles=3) for _ in range(ROUNDS)]
        assert_same(rounds, config, tmp_path, {"simclr": [1, 2], "similarity": [0, 1, 2]})


def test_communicating_once(processes: list[Child], tmp_path: Path) -> None:
    """The epochs of all rounds are those of the only one."""
    config = settings(f"flesd-cc:{SMALL}")
    with joined(processes, tmp_path, config):
        assert_same([all_at_once(processes, "round")], config, tmp_path, {"simclr": [1, 2], "similarity": [0]})
        assert_common_values(tmp_path, "weights")


def test_a_distiller_that_was_stopped_resumes(processes: list[Child], tmp_path: Path) -> None:
    """What was saved after a round is enough to continue: the states of all roles, to the bit."""
    config = settings(f"flesd:{SMALL}")
    with joined(processes, tmp_path, config):
        first = all_at_once(processes, "round")
        for number, child in enumerate(processes):
            child.do(f"save {tmp_path / f'peer-{number}'}")
            child.do("rejoin")
            assert child.do(f"resume {tmp_path / f'peer-{number}'}")
        rounds = [first, all_at_once(processes, "round")]
        assert_same(rounds, config, tmp_path, {"simclr": [1, 2], "similarity": [0]})
