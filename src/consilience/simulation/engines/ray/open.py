"""Opening the engine of a cluster: how many shards a run has there, and what each takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from consilience.config.config import Config
from consilience.errors import ClusterError
from consilience.simulation.cluster.connect import connected, describe_resources, resources
from consilience.simulation.engines.base import EngineName
from consilience.simulation.engines.ray.engine import RayEngine, ShardOptions
from consilience.simulation.setup.setup import Setup


@contextmanager
def open_ray_engine(config: Config, setup: Setup, name: EngineName) -> Iterator[RayEngine]:
    """The engine, connected to the cluster that the configuration names."""
    plans = list(setup.cohorts.plans)
    with connected(str(config.execution.cluster)) as ray:
        learners = sum(len(plan.members) for plan in plans)
        shards, taken = _share(ray, config, learners)
        options = ShardOptions(shards, taken, name, config.execution.deterministic)
        with RayEngine(ray, plans, setup.data.train, setup.data.local_test_sets, options) as engine:
            yield engine


def _share(ray: Any, config: Config, learners: int) -> tuple[int, dict[str, float]]:
    """How many shards there are, and what each takes: a CPU, or a GPU or an equal share of one."""
    kind = "GPU" if config.execution.device == "cuda" else "CPU"
    there, wanted = int(resources(ray)[kind]), config.execution.workers
    if not there or (kind == "CPU" and wanted is not None and wanted > there):
        needs = f"{wanted or 1} {kind}{'s' * ((wanted or 1) != 1)}"
        advice = "add machines, or take fewer workers" if there else "add a machine that has one, or choose device cpu"
        raise ClusterError(
            f"the run takes {needs} of cluster {config.execution.cluster!r}, which has {describe_resources(ray)}; "
            f"{advice}"
        )
    shards = min(wanted or there, learners)
    if kind == "CPU":
        return shards, {"num_cpus": 1}
    return shards, {"num_cpus": 1, "num_gpus": 1 / math.ceil(shards / there)}
