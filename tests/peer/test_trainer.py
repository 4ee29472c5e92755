"""Real processes over a relay give the simulator's results, and bodies on the socket have the counted size."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.config.config import make_config
from consilience.config.overrides import parse_method
from consilience.data.local_datasets import make_local_datasets
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.relay import admin
from consilience.relay.store import Store
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.inputs import load_data
from consilience.simulation.simulate import simulate
from tests.method_tools import write_readme_exchange
from tests.relay_tools import SOURCE, serving

ROUNDS, MEMBERS = 5, 3
TWO_ANSWERS = "fedavg:objective=calibrated:own_head=true"
HELD_OUT = "consilience:own_model=true"  # each member holds out a fifth of its samples
PROGRAM = Path(__file__).with_name("member_in_step.py")


class Child:
    """A member in a separate process."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        command = [sys.executable, str(PROGRAM)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def do(self, step: str) -> Any:
        self.begin(step)
        return self.result()

    def begin(self, step: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Child]]:
    """Three processes that serve all federations here, one after the other: importing torch takes longer than a run."""
    started = [Child() for _ in range(MEMBERS)]
    yield started
    for child in started:
        child.end()


@contextlib.contextmanager
def joined(processes: list[Child], folder: Path, method: str, source: str = "digits") -> Iterator[Any]:
    """Three members of a federation on digits, or other data, each with the samples of the simulated learner."""
    samples = {"train": 360} if source != "diabetes" else {"train": 330}
    settings = {"data": source, "learners": MEMBERS, "rounds": ROUNDS, **samples, "seed": 3, "workers": 0}
    partition = "shards(2)" if method == TWO_ANSWERS else "iid"
    held_out = {"validation": 0.2} if method == HELD_OUT else {}
    config = make_config({**settings, **held_out, "partition": partition, "method": parse_method(method)})
    data = load_data(config)
    charter, starts = create_charter(
        "digits",
        parse_method(method),
        TaskShape(data.shape, data.classes, target=data.target),
        ["mlp"],
        seed=config.federation.seed,
    )
    write_charter(folder / "digits.toml", charter, starts)
    store = folder / "relay.db"
    admin.create(store, folder / "digits.toml")
    (folder / "config.toml").write_text(config.to_toml())
    parts = make_local_datasets(data, MEMBERS, partition=partition, shift="none", seed=config.federation.seed).parts
    with serving(store) as running:
        for number, (child, part) in enumerate(zip(processes, parts, strict=True)):
            known: dict[str, Any] = {} if source == "digits" else {"target": json.dumps(asdict(data.target))}
            token, own, file = str(admin.invite(store, f"m{number}")), np.sort(part), folder / f"{number}.npz"
            np.savez(
                file,
                inputs=data.inputs[own],
                targets=data.targets[own],
                test_inputs=data.test_inputs,
                test_targets=data.test_targets,
                classes=data.classes,
                scaling=data.scaling.of_pixels,
                **known,
            )
            arguments = (running.url, token, folder / f"peer-{number}", folder / "config.toml", file)
            child.do(f"join {json.dumps(list(map(str, arguments)))}")
        yield config
        for child in processes:
            child.do("leave")


@pytest.mark.parametrize(
    "method",
    [
        *("representation-sharing", "federated-distillation", "fedavg", "fedavg-1bit", "consilience", "two-stage"),
        "two-stage:inner=batch:batches=4",
        "fedavg:objective=simclr",
        "cluster-sharing:clusters=6:objective=simclr",
        "fedavg:up=bit:down=int4",
        "consilience:up=int4:down=int4",
        TWO_ANSWERS,
        HELD_OUT,
        "mine.py:spread:weight=3",
    ],
)
def test_real_processes_give_the_simulator_s_results(
    processes: list[Child], tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_readme_exchange(tmp_path)
    monkeypatch.chdir(tmp_path)
    with joined(processes, tmp_path, method) as config:
        told: list[list[dict[str, Any]]] = []
        if all([child.do("introduce") for child in processes]):  # all members, in order
            told.append([child.do("hear") for child in processes])
        before = len(told)
        for _ in range(ROUNDS):
            assert all([child.do("share") for child in processes])
            told.append([child.do("hear") for child in processes])
        result = simulate(config, out=tmp_path / "run")
    rounds = told[before:]
    assert all(each["acknowledged"] for round_ in told for each in round_)
    # Without labels a member's probe is trained on its own samples, a simulation's on those of all learners.
    loss = "loss.two_stage" if method.startswith("two-stage") else "loss.cross_entropy"
    own = ("accuracy_own",) if rounds[0][0]["accuracy_own"] is not None else ()
    assert bool(own) == (method == TWO_ANSWERS or method.startswith("consilience"))
    metrics = ("accuracy", *own, loss)
    for key in ("loss.simclr",) if "simclr" in method else metrics:
        name = key.removeprefix("loss.")
        mine = [[each["losses"][name] if key != name else each[name] for each in round_] for round_ in rounds]
        np.testing.assert_array_equal(np.array(mine), result.history[key][:, 0])
    for key, way in (("bytes_up", "bytes.up"), ("bytes_down", "bytes.down")):
        measured = np.array([[each[key] for each in round_] for round_ in told])
        reckoned = np.stack([record[way][0] for record in result.history.records[1 - before :]])
        np.testing.assert_array_equal(measured, reckoned)
    assert_common_values(tmp_path, moving="gradients" if method.startswith("two-stage") else "weights")


@pytest.mark.parametrize(
    ("source", "method"),
    [("diabetes", "consilience"), ("digit-pairs", "consilience"), ("diabetes", "federated-distillation")],
)
def test_labels_and_numbers_give_the_simulator_s_results(
    processes: list[Child], tmp_path: Path, source: str, method: str
) -> None:
    told: list[list[dict[str, Any]]] = []
    with joined(processes, tmp_path, method, source) as config:
        assert all([child.do("introduce") for child in processes])
        for child in processes:
            child.do("hear")
        for _ in range(ROUNDS):
            assert all([child.do("share") for child in processes])
            told.append([child.do("hear") for child in processes])
        result = simulate(config, out=tmp_path / "run")
    loss = "squared_error" if source == "diabetes" else "binary_cross_entropy"
    scores = np.array([[each["accuracy"] for each in round_] for round_ in told])
    losses = np.array([[each["losses"][loss] for each in round_] for round_ in told])
    np.testing.assert_array_equal(scores, result.history["accuracy"][:, 0])
    np.testing.assert_array_equal(losses, result.history[f"loss.{loss}"][:, 0])
    if method == "consilience":
        assert_common_values(tmp_path, moving="weights")


def assert_common_values(folder: Path, moving: str) -> None:
    """A moving mean at the relay, if any, is bit for bit equal to that of the simulation."""
    checkpoint = RunFolder.open(folder / "run").load()
    assert checkpoint is not None
    prefix = f"channels.0.{moving}.common."
    simulated = {k.removeprefix(prefix): v for k, v in checkpoint[0].items() if k.startswith(prefix)}
    with contextlib.closing(Store(folder / "relay.db")) as store:
        kept = store.channel_states.get(1, moving) or {}
    assert {k for k in kept if k.startswith("common.")} == {f"common.{k}" for k in simulated}
    for name, value in simulated.items():
        np.testing.assert_array_equal(kept[f"common.{name}"], value)
