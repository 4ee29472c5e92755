"""One run on a cluster of two simulated machines: the bits of the loop, whatever is lost meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import Result, simulate
from consilience.methods import METHODS
from consilience.simulation.engines.jobs import Job, Work
from consilience.simulation.engines.ray.engine import RayEngine
from consilience.simulation.engines.ray.remote_shard import RemoteShard
from consilience.simulation.records.checkpoint import Checkpoint, load_checkpoint
from consilience.simulation.records.run_folder import RunFolder
from tests.cluster_tools import TwoNodes, assert_same_records, two_nodes

SIZE: dict[str, Any] = {"data": "digits", "train": 60, "test": 30, "learners": 3, "rounds": 2, "engine": "loop"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes() as started:
        yield started


def saved(folder: Path) -> Checkpoint:
    found = load_checkpoint(RunFolder(folder))
    assert found is not None
    return found


def assert_same_run(here: Result, there: Result) -> None:
    """The records of all rounds, and everything that the next round would depend on."""
    assert_same_records(here.history, there.history)
    assert here.folder is not None and there.folder is not None
    one, other = saved(here.folder).arrays, saved(there.folder).arrays
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


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


def test_a_machine_lost_in_mid_round_changes_no_bit(
    nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SIZE | {"method": "fedavg-1bit", "rounds": 3}
    here = simulate(**settings, workers=0, out=tmp_path / "here")
    at_job(monkeypatch, 5, lambda engine: nodes.lose_second())
    with caplog.at_level(logging.WARNING, "consilience"):
        there = simulate(**settings, cluster=nodes.address, workers=2, out=tmp_path / "there")
    print(caplog.text)
    assert_same_run(here, there)
    assert "lost the process on" in caplog.text
