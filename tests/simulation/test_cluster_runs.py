"""Runs of a comparison, a sweep and a reproduction as tasks on two simulated machines: the plain command's numbers."""

from __future__ import annotations

import importlib
import json
import logging
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import compare, sweep
from consilience.errors import ClusterError, ConfigurationError
from consilience.models import SplitModel
from consilience.papers import Cell, Reproduction, Scale
from consilience.papers.run import run_reproduction
from consilience.simulation.cluster import tasks
from consilience.simulation.engines.stack.stackable import CannotStackError
from consilience.simulation.planned_run import PlannedRun
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from tests.cluster_tools import TwoNodes, assert_same_checkpoint, assert_same_records, two_nodes

Command = Callable[..., tuple[int, str, str]]
SIZE: dict[str, Any] = {"data": "digits", "train": 60, "test": 30, "learners": 3, "rounds": 2, "engine": "loop"}
METHODS = ("fedavg", "consilience")


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes(cpus=1) as started:
        yield started


class Odd(Exception):
    """Cannot be made again from its message alone, as it would have to be after it was sent."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def odd() -> SplitModel:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and len(x) == 20 and in_a_task():  # all samples of a learner
                raise Odd(code=3)
            return x

    return SplitModel(nn.Sequential(nn.Flatten(), Failing(), nn.Linear(64, 16)), nn.Linear(16, 10))


def in_a_task() -> bool:
    ray: Any = importlib.import_module("ray")
    return ray.get_runtime_context().get_task_id() is not None


def forgetful() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 16)), nn.Linear(16, 10))


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    changing = ("seconds", "peak_memory_mb", "peak_device_mb", "run")
    found = {key: value for key, value in summary.items() if key not in changing}
    return found | {"variants": [without_times(each) for each in found.get("variants", ())]}


def test_compared_methods_have_the_numbers_of_the_plain_command(nodes: TwoNodes, tmp_path: Path) -> None:
    shown: list[tuple[str, int, int]] = []

    def on_round(method: str, round_: int, rounds: int, history: History) -> None:
        shown.append((method, round_, len(history.records)))

    here = compare(methods=METHODS, **SIZE, workers=0, out=tmp_path / "here")
    there = compare(methods=METHODS, **SIZE, cluster=nodes.address, out=tmp_path / "there", on_round=on_round)
    assert there.finished and list(there.results) == list(here.results)
    for name, result in here.results.items():
        other = there.results[name]
        assert_same_records(result.history, other.history)
        assert result.folder is not None and other.folder is not None
        assert_same_checkpoint(result.folder, other.folder)
    assert list(map(without_times, map(dict, here.summaries))) == list(map(without_times, map(dict, there.summaries)))
    assert RunFolder(tmp_path / "there" / "fedavg").result["run"] == str(tmp_path / "there" / "fedavg")  # type: ignore[index]
    assert list(dict.fromkeys(each for each in shown if each[1] == 2)) == [(name, 2, 3) for name in METHODS]


def test_runs_in_memory_come_back_with_their_models(nodes: TwoNodes) -> None:
    settings = SIZE | {"rounds": 1}
    here = compare(methods=["fedavg"], **settings, workers=0)
    there = compare(methods=["fedavg"], **settings, cluster=nodes.address)
    one, other = here.results["fedavg"], there.results["fedavg"]
    assert_same_records(one.history, other.history)
    for key, value in one.model(1).state_dict().items():
        np.testing.assert_array_equal(value.numpy(), other.model(1).state_dict()[key].numpy())


def test_swept_settings_have_the_numbers_of_the_plain_command(nodes: TwoNodes, tmp_path: Path) -> None:
    grid = {"method.kd": [0, 1], "batch_size": [16, 32]}
    here = sweep(method="fedproto", grid=grid, **SIZE, workers=0, out=tmp_path / "here")
    there = sweep(method="fedproto", grid=grid, **SIZE, cluster=nodes.address, out=tmp_path / "there")
    assert there.finished
    assert list(map(without_times, here.rows)) == list(map(without_times, there.rows))
    assert (tmp_path / "here" / "sweep.csv").read_text() == (tmp_path / "there" / "sweep.csv").read_text()


def test_reproduced_cells_have_the_numbers_of_the_plain_command(nodes: TwoNodes, tmp_path: Path) -> None:
    def numbers(folder: Path, scale: Scale) -> Any:
        assert not run_reproduction(tiny(), scale, folder).missing
        lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
        return [(line["name"], line["labels"], without_times(line["summary"])) for line in lines]

    assert numbers(tmp_path / "here", Scale()) == numbers(tmp_path / "there", Scale(cluster=nodes.address))


def tiny() -> Reproduction:
    def cells(scale: Scale) -> list[Cell]:
        shared = {key: value for key, value in SIZE.items() if key != "engine"} | scale.settings(1)
        return [Cell({"row": name}, shared | {"method": {"name": name}}) for name in METHODS]

    return Reproduction("tiny", "for tests", cells, lambda outcomes: [])


# --- Ctrl-C, and what is lost


def test_ctrl_c_stops_all_runs_after_their_round_and_they_resume(nodes: TwoNodes, tmp_path: Path) -> None:
    settings = SIZE | {"rounds": 200, "eval_every": 100}
    pressed = False

    def on_round(method: str, round_: int, rounds: int, history: History) -> None:
        nonlocal pressed
        if not pressed:
            pressed = True
            signal.raise_signal(signal.SIGINT)

    folder, there = tmp_path / "there", settings | {"cluster": nodes.address}
    stopped = compare(methods=["fedavg", "consilience"], **there, out=folder, on_round=on_round)
    assert pressed and not stopped.finished
    results = [RunFolder(folder / name).result for name in ("fedavg", "consilience")]
    rounds = [each["rounds"] for each in results if each is not None]  # one of them may not have begun
    assert rounds and all(0 < each < 200 for each in rounds)
    resumed = compare(resume=folder)
    here = compare(methods=["fedavg", "consilience"], **settings, workers=0, out=tmp_path / "here")
    for name, result in here.results.items():
        assert_same_records(result.history, resumed.results[name].history)
        assert_same_checkpoint(tmp_path / "here" / name, folder / name)


def test_a_run_whose_machine_is_lost_starts_again_elsewhere(
    nodes: TwoNodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SIZE | {"rounds": 100, "eval_every": 100}

    def on_round(method: str, round_: int, rounds: int, history: History) -> None:
        if nodes.second is not None:
            nodes.lose_second()

    methods = ["fedavg", "fedproto"]
    with caplog.at_level(logging.WARNING, "consilience"):
        there = compare(methods=methods, **settings, cluster=nodes.address, out=tmp_path, on_round=on_round)
    nodes.add_second()
    assert ": lost with " in caplog.text and ", starts again on " in caplog.text
    here = compare(methods=methods, **settings, workers=0)
    for name in methods:
        assert_same_records(here.results[name].history, there.results[name].history)


# --- what cannot work


def test_more_cpus_than_a_machine_has_are_refused(nodes: TwoNodes) -> None:
    with pytest.raises(ClusterError, match=r"each run takes 2 CPUs of one machine of cluster .*, and none has that"):
        compare(methods=["fedavg"], **SIZE, cluster=nodes.address, workers=2)


def test_gpus_are_looked_for_where_the_runs_are(nodes: TwoNodes) -> None:
    with pytest.raises(
        ClusterError, match=r"each run takes 1 CPU and 1 GPU of one machine of cluster .*, and none has"
    ):
        compare(methods=["fedavg"], **SIZE, cluster=nodes.address, device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine that has no GPU is told that it has one")
def test_a_machine_without_the_gpu_it_was_started_with_refuses_the_run(nodes: TwoNodes) -> None:
    node = nodes.cluster.add_node(**nodes.node, num_gpus=1)
    try:
        nodes.cluster.wait_for_nodes()
        with pytest.raises(ConfigurationError, match=r"device .cuda. is not available: .* on this machine") as caught:
            compare(methods=["fedavg"], **SIZE, cluster=nodes.address, device="cuda")
    finally:
        nodes.cluster.remove_node(node)
    assert "on the cluster: run 1, on " in caught.value.__notes__[0]


def test_data_that_a_machine_does_not_have_are_named_with_the_machine(
    nodes: TwoNodes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_task = tasks._as_task

    def elsewhere(run: PlannedRun) -> PlannedRun:
        found = as_task(run)
        return replace(found, config=found.config.replace(data="/nowhere/ours.csv"))

    monkeypatch.setattr(tasks, "_as_task", elsewhere)
    Path("ours.csv").write_text("a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(40)))
    size = ["--data", "ours.csv", "--label", "y", "--learners", "2", "--rounds", "1"]
    code, _, said = command("compare", "--methods", "fedavg", *size, "--cluster", nodes.address)
    place = r"\(on the cluster: run 1, on .* \(node \w+\)\)"
    assert code != 0 and re.search(rf"error: .*/nowhere/ours\.csv.* {place}$", said.strip()), said


def test_an_error_of_a_run_that_cannot_be_sent_is_not_taken_for_a_lost_machine(nodes: TwoNodes) -> None:
    with pytest.raises(ClusterError, match=r"run 1 \(fedavg\) failed on the cluster: (.|\n)*Odd: code 3"):
        compare(methods=["fedavg"], **SIZE, model=odd, cluster=nodes.address)


def test_what_cannot_be_stacked_there_is_named_as_here(nodes: TwoNodes) -> None:
    with pytest.raises(CannotStackError, match="draws random numbers as it trains") as caught:
        compare(methods=["fedavg"], **SIZE | {"engine": "stack"}, model=forgetful, cluster=nodes.address)
    assert "on the cluster: run 1, on " in caught.value.__notes__[0]
