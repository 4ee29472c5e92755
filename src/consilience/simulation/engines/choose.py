"""Which engine runs a simulation."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.learner.device import has_float64
from consilience.learner.learner import Learner
from consilience.simulation.engines.base import Engine
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.loop.engine import LoopEngine, default_workers
from consilience.simulation.engines.loop.worker_pool import is_running
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.stackable import refuse_unstackable
from consilience.simulation.setup.setup import Setup

log = logging.getLogger("consilience")

_MIN_LEARNERS = 16  # of a federation, and
_MAX_PARAMETERS = 100_000  # of a learner, for which the stack is faster on a CPU: measured in docs/architecture.md
_MIN_SECONDS_TO_START = 5.0  # of estimated work, for which worker processes are started
_MIN_SECONDS_IF_RUNNING = 0.5  # of estimated work, for which running worker processes are used


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigurationError(f"unknown device {device!r}; use cpu, cuda, cuda:NUMBER or mps") from None
    if kind not in ("cpu", "cuda", "mps"):
        raise ConfigurationError(f"device {device!r} is not supported; use cpu, cuda, cuda:NUMBER or mps")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError(f"device {device!r} is not available: it is for a Mac with an Apple GPU; use cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device {device!r} is not available: torch finds no GPU on this machine; use cpu")
    if kind == "cuda" and (torch.device(device).index or 0) >= (there := torch.cuda.device_count()):
        raise ConfigurationError(f"device {device!r} is not available: the last GPU here is cuda:{there - 1}")


@contextmanager
def torch_configured_for(config: Config) -> Iterator[None]:
    """Configure torch for a run, and restore it afterwards: its device, and deterministic operations if asked for."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if config.execution.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the GPU is first used
        torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device(config.execution.device)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            yield
    except torch.OutOfMemoryError as error:
        raise ConsilienceError(
            f"out of memory on {device}, not in the learners' own work but in channels or the answers held; use fewer "
            f"learners, or fewer seeds at once"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def open_engine(config: Config, setup: Setup, stacked: bool) -> AbstractContextManager[Engine]:
    """The engine that was chosen, here or on a cluster."""
    if config.execution.cluster is not None:
        from consilience.simulation.engines.ray.open import open_ray_engine

        return open_ray_engine(config, setup, stacked)
    if stacked:
        engine = StackEngine(list(setup.cohorts.plans), setup.data.train, setup.data.local_test_sets)
        log.info("%s", engine.memory.describe())
        return engine
    return LoopEngine(list(setup.cohorts.plans), setup.data.train, _workers(config, setup), setup.data.local_test_sets)


def choose_engine(config: Config, setup: Setup, *, together: bool = False) -> bool:
    """Whether to stack the learners: as asked for, refusing what cannot be stacked, or what is faster.

    By default: on a GPU where learners can be stacked, on a CPU for many small learners, where overhead dominates.
    together: whether federations are never run apart, so that the learners of all of them count.
    """
    if not has_float64(torch.device(config.execution.device)):
        _refuse_without_float64(config)
        return False
    if setup.data.train.stream is not None:
        _refuse_streamed(config, setup.data.train.name)
        return False
    if config.execution.engine == "loop":
        return False
    learners = [Learner(plan.spec) for plan in setup.cohorts.plans]
    gpu = torch.device(config.execution.device).type == "cuda"
    pairs = zip(setup.cohorts.plans, learners, strict=True)
    small = all(_many_and_small(plan, learner, together) for plan, learner in pairs)
    if config.execution.engine == "auto" and not gpu and not small:
        return False
    try:
        for learner in learners:
            refuse_unstackable(learner)
    except ConfigurationError as error:
        if config.execution.engine == "stack":
            raise
        if gpu:
            log.warning(
                "using the loop engine on %s, which is far slower than the stack engine: %s",
                config.execution.device,
                error,
            )
        return False
    return True


def _refuse_streamed(config: Config, data: str) -> None:
    """Refuse what streamed samples cannot do; say that a GPU would be faster otherwise."""
    execution = config.execution
    if execution.cluster is not None:
        raise ConfigurationError(
            f"cluster is {execution.cluster!r}, and data set {data!r} is streamed, which one process reads; leave "
            f"cluster out, or make the data set with Dataset.from_torch, which is sent to all machines"
        )
    if execution.engine == "stack":
        raise ConfigurationError(
            f"data set {data!r} is streamed, and stacked learners need their samples in memory; leave out engine = "
            f"'stack', or make the data set with Dataset.from_torch"
        )
    if execution.workers:
        raise ConfigurationError(
            f"workers is {execution.workers}, and data set {data!r} is streamed, which one process does; leave workers "
            f"out here, and give Dataset.streamed its own, workers={execution.workers}, to read ahead"
        )
    if torch.device(execution.device).type == "cuda":
        log.warning(
            "data set %r is streamed, so learners train one after the other on %s; from memory, Dataset.from_torch, "
            "they would train together",
            data, execution.device,
        )  # fmt: skip


def _refuse_without_float64(config: Config) -> None:
    """Refuse what a device without float64 cannot do."""
    device, execution = config.execution.device, config.execution
    if execution.precision == "float64":
        raise ConfigurationError(f"precision is 'float64', which device {device!r} does not have; use cpu, or float32")
    if execution.engine == "stack":
        raise ConfigurationError(f"device {device!r} runs on the loop engine only; leave out engine = 'stack'")


def _many_and_small(plan: CohortPlan, learner: Learner, together: bool) -> bool:
    """Whether a cohort is faster stacked on a CPU. Stacked convolutions are slow there.

    Only the learners of one federation count, so that other seeds and settings in the same run never change the engine;
    of all federations only where they are never run apart.
    """
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in learner.model.modules())
    learners = len(plan.members) if together else len(np.unique(plan.members.learner))
    return learners >= _MIN_LEARNERS and plan.parameters <= _MAX_PARAMETERS and not convolves


def _workers(config: Config, setup: Setup) -> int:
    """The number of worker processes: as asked for; else one per core where there is enough work."""
    if setup.data.train.stream is not None:
        return 0
    if config.execution.workers is not None:
        return config.execution.workers
    seconds = (
        config.training.rounds * config.federation.participation * sum(_seconds(plan) for plan in setup.cohorts.plans)
    )
    wanted = min(default_workers(), sum(len(plan.members) for plan in setup.cohorts.plans))
    return wanted if seconds > (_MIN_SECONDS_IF_RUNNING if is_running(wanted) else _MIN_SECONDS_TO_START) else 0


def _seconds(plan: CohortPlan) -> float:
    """A rough estimate of the seconds that a round of a cohort takes on one core."""
    samples = int(plan.members.sizes.sum()) * plan.work.epochs
    return 1e-3 * samples / plan.work.batch_size + 5e-9 * samples * plan.parameters
