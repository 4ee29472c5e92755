"""One run on a cluster of two simulated machines: the bits of the loop, whatever is lost meanwhile."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from consilience import Result, simulate
from consilience.errors import ClusterError
from consilience.methods import METHODS
from consilience.models import SplitModel
from consilience.simulation.engines.jobs import Job, Work
from consilience.simulation.engines.ray import remote_shard
from consilience.simulation.engines.ray.engine import RayEngine
from consilience.simulation.engines.ray.remote_shard import RemoteShard
from consilience.simulation.engines.ray.sent_answers import SentAnswers
from consilience.simulation.records.history import History
from consilience.simulation.run import StopRun
from tests.cluster_tools import KeptActors, TwoNodes, assert_same_checkpoint, assert_same_records, two_nodes

SIZE: dict[str, Any] = {"data": "digits", "train": 60, "test": 30, "learners": 3, "rounds": 2, "engine": "loop"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes(cpus=2) as started:
        yield started


@pytest.fixture(scope="module")
def actors(nodes: TwoNodes) -> KeptActors:
    return KeptActors()


@pytest.fixture
def kept(actors: KeptActors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteShard, "create", lambda self, **others: actors.create(self, **others))
    monkeypatch.setattr(RemoteShard, "end", lambda self: actors.end(self))


@pytest.fixture
def fresh(actors: KeptActors) -> None:
    """All CPUs of the cluster are free, and every run has processes of its own."""
    actors.end_all()


def assert_same_run(here: Result, there: Result) -> None:
    assert here.folder is not None and there.folder is not None
    assert_same_records(here.history, there.history)
    assert_same_checkpoint(here.folder, there.folder)


# --- the same bits


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_bits_of_the_loop(method: str, nodes: TwoNodes, tmp_path: Path) -> None:
    here = simulate(**SIZE, method=method, workers=0, out=tmp_path / "here")
    there = simulate(**SIZE, method=method, cluster=nodes.address, workers=2, out=tmp_path / "there")
    assert_same_run(here, there)


OTHERS: dict[str, dict[str, Any]] = {
    "several seeds, partial participation": {"seeds": 2, "participation": 0.7, "offline": 0.3, "eval_every": 2},
    "unlike models": {"method": "representation-sharing", "model": "mlp,lenet5,mlp", "width": 16},
    "schedules and groups": {"lr": "cosine(0.01, 0.001, 2)", "groups": {"one": {"learners": 1, "lr": 0.02}}},
    "validation": {"validation": 0.3, "method": "fedavg", "metrics": "f1"},
    "partners": {"method": "representation-sharing", "partners": "similar(1)"},
    "an attack": {"aggregation": "median", "groups": {"bad": {"learners": 0, "attack": "sign-flip"}}},
}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("case", OTHERS)
def test_other_runs_have_the_bits_of_the_loop(case: str, nodes: TwoNodes, tmp_path: Path) -> None:
    settings = SIZE | OTHERS[case]
    here = simulate(**settings, workers=0, out=tmp_path / "here")
    there = simulate(**settings, cluster=nodes.address, workers=2, out=tmp_path / "there")
    assert_same_run(here, there)


@pytest.mark.usefixtures("fresh")
def test_stacks_on_one_machine_plan_with_a_share_of_its_memory(
    nodes: TwoNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes on each machine, as with twice as many workers as GPUs."""
    with caplog.at_level(logging.INFO, "consilience"):
        simulate(**SIZE | {"engine": "stack", "learners": 4}, method="fedavg", cluster=nodes.address, workers=4)
    plans = [each for each in caplog.messages if " stack: cpu has " in each]
    assert len(plans) == 4 and all(" free for each of 2 processes; " in each for each in plans)


# --- resume


@pytest.mark.usefixtures("kept")
def test_a_stopped_run_resumes_to_the_same_bits(nodes: TwoNodes, tmp_path: Path) -> None:
    def stop(method: str, round_: int, rounds: int, history: History) -> None:
        if round_ == 1:
            raise StopRun

    settings = SIZE | {"method": "fedavg-1bit", "rounds": 3}
    here = simulate(**settings, workers=0, out=tmp_path / "here")
    there = tmp_path / "there"
    stopped = simulate(**settings, cluster=nodes.address, workers=2, out=there, on_round=stop)
    assert not stopped.finished and stopped.history.rounds == 1
    assert_same_run(here, simulate(resume=there))


# --- what is lost


def at_job(monkeypatch: pytest.MonkeyPatch, number: int, happens: Callable[[RayEngine], None]) -> None:
    """Something happens when this many jobs of local work have been sent, of which the last is not done."""
    sent, send = 0, RayEngine._send

    def counting(self: RayEngine, job: Job) -> Any:
        nonlocal sent
        parts, sent = send(self, job), sent + isinstance(job, Work)
        if sent == number and isinstance(job, Work):
            happens(self)
        return parts

    monkeypatch.setattr(RayEngine, "_send", counting)


@pytest.mark.usefixtures("fresh")
def test_a_lost_process_changes_no_bit(
    nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With copies of the states in every round, so that the calls since the last one are made again."""
    settings = SIZE | {"method": "consilience", "rounds": 3}
    here = simulate(**settings, workers=0, out=tmp_path / "here")
    monkeypatch.setattr(remote_shard, "_COPY_SECONDS", 0.0)
    at_job(monkeypatch, 8, lambda engine: engine.shards[0].end())
    with caplog.at_level(logging.WARNING, "consilience"):
        there = simulate(**settings, cluster=nodes.address, workers=2, out=tmp_path / "there")
    assert_same_run(here, there)
    assert "learners 0, 2: lost the process on" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_a_machine_lost_in_mid_round_changes_no_bit(
    nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine that is left has a free CPU for one of the two processes; the other shares one."""
    settings = SIZE | {"method": "fedavg-1bit", "rounds": 3, "learners": 4}
    here = simulate(**settings, workers=0, out=tmp_path / "here")
    at_job(monkeypatch, 6, lambda engine: nodes.lose_second())
    with caplog.at_level(logging.INFO, "consilience"):
        there = simulate(**settings, cluster=nodes.address, workers=3, out=tmp_path / "there")
    nodes.add_second()
    assert_same_run(here, there)
    assert "lost the process on" in caplog.text and ": go on, on" in caplog.text


# --- what cannot work


def test_more_workers_than_the_cluster_has_are_refused(nodes: TwoNodes) -> None:
    with pytest.raises(ClusterError, match=r"takes 99 CPUs of cluster .*, which has 2 nodes with 4 CPUs and 0 GPUs"):
        simulate(**SIZE, cluster=nodes.address, workers=99)


@pytest.mark.usefixtures("fresh")
def test_a_busy_cluster_is_waited_for_and_then_named(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = importlib.import_module("ray")
    monkeypatch.setattr(remote_shard, "_START_SECONDS", 1.0)

    class Program:
        def is_there(self) -> bool:
            return True

    busy = [ray.remote(Program).options(num_cpus=2).remote() for _ in range(2)]
    assert all(ray.get([each.is_there.remote() for each in busy]))
    try:
        with pytest.raises(ClusterError, match="1 CPU did not start on the cluster within 1 s; it has 2 nodes with 4"):
            simulate(**SIZE, cluster=nodes.address, workers=2)
    finally:
        for each in busy:
            ray.kill(each)


@pytest.mark.usefixtures("kept")
def test_an_error_there_is_raised_here_and_says_where(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentAnswers, "send", lambda self, shard, job: None)
    with pytest.raises(IndexError) as caught:
        simulate(**SIZE, cluster=nodes.address, workers=2)
    assert any("on the cluster: learners 0, 2, on " in note for note in caught.value.__notes__)


def die() -> SplitModel:
    """Ends the process of a cluster that trains it, as the system does where there is no memory left."""

    class Dying(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            ray: Any = importlib.import_module("ray")
            if self.training and ray.get_runtime_context().get_actor_id():
                os._exit(1)
            return x

    return SplitModel(nn.Sequential(nn.Flatten(), Dying(), nn.Linear(64, 16)), nn.Linear(16, 10))


@pytest.mark.usefixtures("fresh")
def test_work_that_ends_its_process_each_time_is_given_up(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_shard, "_LOSSES", 1)
    with pytest.raises(ClusterError, match=r"learner 0: the process was lost 2 times at the same work, .* take fewer"):
        simulate(**SIZE | {"learners": 1}, model=die, cluster=nodes.address, workers=1)


@pytest.mark.usefixtures("kept")
def test_an_error_that_nobody_waits_for_is_raised_too(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise learners would go on with other states than they were given."""
    call = RemoteShard.call

    def to_no_cohort(self: RemoteShard, method: str, *arguments: Any, changes: bool = True) -> Any:
        return call(self, method, *((99, *arguments[1:]) if method == "write" else arguments), changes=changes)

    monkeypatch.setattr(RemoteShard, "call", to_no_cohort)
    with pytest.raises(IndexError) as caught:
        simulate(**SIZE, method="fedavg", cluster=nodes.address, workers=2)
    assert any("on the cluster: learners 0, 2, on " in note for note in caught.value.__notes__)
