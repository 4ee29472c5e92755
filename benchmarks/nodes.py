"""One point of `benchmarks/scale.py`: a round of one federation on nodes of a Ray cluster, or in processes without one.

Workload: FedAvg, LeNet5, 40 learners with images of MNIST (from CONSILIENCE_DATA), batch 32, Adam, no evaluation. The
nodes are simulated: each is a raylet on this machine with one CPU and a process for its learners, and what they send
goes over the loopback address. `cpu` are the processor seconds of all processes of a point, those of Ray included.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from consilience.config.config import Config, make_config
from consilience.data import load
from consilience.methods import build_method
from consilience.simulation.cluster.connect import LOCAL, import_ray
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.engines.ray.engine import RayEngine
from consilience.simulation.engines.ray.open import open_ray_engine
from consilience.simulation.engines.ray.remote_shard import Call, RemoteShard
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import Setup, build_setup

LEARNERS, ROUNDS = 40, 3
STORE = 100 * 2**20  # bytes of memory that a node has for what is sent: the data are 15 MB
TICKS = os.sysconf("SC_CLK_TCK")


def measure(samples: int, processes: int, nodes: int) -> dict[str, Any]:
    """A point: seconds of a round, until the first one, and what travels. nodes: 0 for the loop engine alone."""
    data = load("mnist", train=LEARNERS * samples, test=10)
    method = build_method("fedavg")
    given = {"learners": LEARNERS, "model": "lenet5", "method": {"name": "fedavg"}}
    torch.set_num_threads(1)
    with ExitStack() as stack:
        if nodes:
            given |= {"cluster": stack.enter_context(cluster(nodes)), "workers": processes}
        config, began = make_config(given), time.perf_counter()
        setup = build_setup(config, method, data, ["lenet5"])
        engine = stack.enter_context(opened(config, setup, processes))
        rounds = Rounds(setup, engine)
        rounds.start()
        start, times = time.perf_counter() - began, []
        for _ in range(1 + ROUNDS):
            wall, cpu = time.perf_counter(), processor_seconds()
            rounds.run(evaluate=False)
            times.append((processor_seconds() - cpu, time.perf_counter() - wall))
        bits = hashlib.sha256(engine.read(0).parameters.numpy().tobytes()).hexdigest()
        sent = traffic(rounds) if nodes else {}
    cpu, wall = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return {"cpu": cpu, "wall": wall, "start": start, **sent, "bits": int(bits[:8], 16)}


@contextmanager
def opened(config: Config, setup: Setup, processes: int) -> Iterator[LoopEngine | RayEngine]:
    """The engine: of the cluster that the configuration names, or the loop engine in this process or in several."""
    if config.execution.cluster is not None:
        with open_ray_engine(config, setup, "loop") as remote:
            yield remote
        return
    workers = processes if processes > 1 else 0
    with LoopEngine(list(setup.cohorts.plans), setup.data.train, workers, setup.data.local_test_sets) as engine:
        yield engine


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """The address of a cluster of simulated nodes, to which this process is connected; afterwards nothing is left."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # as the loop's processes: by default Ray's wait for all others
    ray = import_ray(LOCAL)
    simulated: Any = importlib.import_module("ray.cluster_utils").Cluster
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, RAY_TMPDIR=folder),  # Ray writes the cluster's address there, not over a user's
    ):
        (Path(folder) / "ray").mkdir()
        node = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "temp_dir": folder}
        node["node_ip_address"] = "127.0.0.1"
        started = simulated(initialize_head=True, head_node_args=node)
        try:
            for _ in range(nodes - 1):
                started.add_node(**node)
            started.wait_for_nodes()
            ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
            yield str(started.address)
        finally:
            ray.shutdown()
            started.shutdown()


def traffic(rounds: Rounds) -> dict[str, float]:
    """One more round: how many calls do a job, and the bytes of arrays that go to the nodes and come from them."""
    found = {"calls": 0, "sent": 0, "received": 0}
    call, result = RemoteShard.call, RemoteShard.result

    def counted_call(shard: RemoteShard, method: str, *arguments: Any, changes: bool = True) -> Call:
        found["calls"] += method == "do"
        found["sent"] += array_bytes(arguments, shard.ray)
        return call(shard, method, *arguments, changes=changes)

    def counted_result(shard: RemoteShard, made: Call) -> Any:
        brought = result(shard, made)
        found["received"] += array_bytes(brought, shard.ray)
        return brought

    with mock.patch.multiple(RemoteShard, call=counted_call, result=counted_result):
        rounds.run(evaluate=False)
    return {key: float(value) for key, value in found.items()}


def array_bytes(thing: Any, ray: Any) -> int:
    """Bytes of the arrays in something that is sent; each node gets its own copy of what is sent by reference."""
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if isinstance(thing, ray.ObjectRef):
        return array_bytes(ray.get(thing), ray)
    if isinstance(thing, Mapping):
        return sum(array_bytes(each, ray) for each in thing.values())
    if isinstance(thing, list | tuple):
        return sum(array_bytes(each, ray) for each in thing)
    if is_dataclass(thing):
        return sum(array_bytes(getattr(thing, field.name), ray) for field in fields(thing))
    return 0


def processor_seconds() -> float:
    """Of this process, and of all that it started or that these started."""
    times, children = dict[int, float](), dict[int, list[int]]()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number, parent = int(place.name), int(after_name[1])
        times[number] = (int(after_name[11]) + int(after_name[12])) / TICKS
        children.setdefault(parent, []).append(number)
    waiting, total = [os.getpid()], 0.0
    while waiting:
        total += times.get(number := waiting.pop(), 0.0)
        waiting += children.get(number, [])
    return total
