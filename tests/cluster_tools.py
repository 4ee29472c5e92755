"""Two simulated machines of a Ray cluster on this one, over loopback, and comparisons with runs without it."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from consilience.simulation.engines.ray.remote_shard import RemoteShard
from consilience.simulation.records.checkpoint import load_checkpoint
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # by default they wait for every other test
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # everything listens on the loopback address alone

_NODE = {"object_store_memory": 80 * 2**20, "include_dashboard": False, "node_ip_address": "127.0.0.1"}


class TwoNodes:
    """A cluster whose second node may be lost and replaced."""

    def __init__(self, folder: str, cpus: int) -> None:
        Cluster: Any = importlib.import_module("ray.cluster_utils").Cluster
        self.node = {**_NODE, "temp_dir": folder, "num_cpus": cpus}
        self.cluster = Cluster(initialize_head=True, head_node_args=self.node)
        self.second: Any = None
        self.add_second()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add_second(self) -> None:
        self.second = self.cluster.add_node(**self.node)
        self.cluster.wait_for_nodes()

    def lose_second(self) -> None:
        """As if the power of the machine failed."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = None


@contextlib.contextmanager
def two_nodes(cpus: int) -> Iterator[TwoNodes]:
    """The cluster, with so many CPUs on each node, and this process connected to it; afterwards nothing is left."""
    ray: Any = importlib.import_module("ray")
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,  # a short path for sockets
        mock.patch.dict(os.environ, RAY_TMPDIR=folder),  # Ray writes the cluster's address there, not over a user's
    ):
        (Path(folder) / "ray").mkdir()
        nodes = TwoNodes(folder, cpus)
        try:
            ray.init(address=nodes.address, logging_level="ERROR", log_to_driver=False)
            yield nodes
        finally:
            ray.shutdown()
            nodes.cluster.shutdown()


class KeptActors:
    """Actors that are used again by the next run, which starts in a moment: importing torch takes seconds."""

    def __init__(self) -> None:
        self.free: list[Any] = []
        self._create = RemoteShard.create

    def create(self, shard: RemoteShard, **others: Any) -> None:
        if self.free and not others:
            shard._actor = self.free.pop()
        else:
            self._create(shard, **others)

    def end(self, shard: RemoteShard) -> None:
        self.free.append(shard._actor)

    def end_all(self) -> None:
        import ray

        while self.free:
            ray.kill(self.free.pop())


def assert_same_records(one: History, other: History) -> None:
    """All metrics of all rounds, bit for bit, except times."""
    assert len(one.records) == len(other.records)
    for round_, (mine, theirs) in enumerate(zip(one.records, other.records, strict=True)):
        assert mine.keys() == theirs.keys()
        for key in mine:
            if not key.startswith("seconds."):
                np.testing.assert_array_equal(mine[key], theirs[key], err_msg=f"{key} in round {round_}")


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """All that the next round would depend on, bit for bit: states, channels, answers held."""
    mine, theirs = (load_checkpoint(RunFolder(folder)) for folder in (one, other))
    assert mine is not None and theirs is not None
    assert mine.arrays.keys() == theirs.arrays.keys()
    for name in mine.arrays:
        np.testing.assert_array_equal(mine.arrays[name], theirs.arrays[name], err_msg=name)
