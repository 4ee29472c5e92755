"""Which engine runs a simulation."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.learner.learner import Learner
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.loop.engine import LoopEngine, default_workers
from consilience.simulation.engines.loop.worker_pool import is_running
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.stackable import refuse_unstackable
from consilience.simulation.setup.setup import Setup

log = logging.getLogger("consilience")

_MANY, _SMALL = 16, 100_000  # learners in a federation, parameters of each: docs/architecture.md has the measurement
_WORTH_WORKERS = 5.0  # seconds of work, roughly, below which starting processes takes longer
_WORTH_HANDING_OUT = 0.5  # where they have been started already


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigurationError(f"unknown device {device!r}; there are cpu, cuda and cuda:NUMBER") from None
    if kind not in ("cpu", "cuda"):
        raise ConfigurationError(f"device {device!r} cannot be used; there are cpu, cuda and cuda:NUMBER")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device {device!r} was asked for, but this machine has no GPU that torch can use")
    if kind == "cuda" and (torch.device(device).index or 0) >= (there := torch.cuda.device_count()):
        raise ConfigurationError(f"device {device!r} was asked for, but the last GPU here is cuda:{there - 1}")


@contextmanager
def settled(config: Config) -> Iterator[None]:
    """Torch as a run wants it: on its own GPU, and where that is asked for with operations that repeat to the bit."""
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
            f"out of memory on {device}, not in the learners' own work but in channels or the answers held; take fewer "
            f"learners or seeds at once"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def open_engine(config: Config, setup: Setup, stacked: bool) -> LoopEngine | StackEngine:
    """The engine that was chosen."""
    if stacked:
        engine = StackEngine(list(setup.cohorts.plans), setup.data.train, setup.data.local_test_sets)
        log.info("%s", engine.memory.describe())
        return engine
    return LoopEngine(list(setup.cohorts.plans), setup.data.train, _workers(config, setup), setup.data.local_test_sets)


def choose_engine(config: Config, setup: Setup) -> bool:
    """Whether to stack the learners: as asked for, refusing what cannot be stacked, or whatever is faster.

    Left to itself: on a GPU where it can, on a CPU where many small learners spend their time between the sums.
    """
    if config.execution.engine == "loop":
        return False
    learners = [Learner(plan.spec) for plan in setup.cohorts.plans]
    gpu = torch.device(config.execution.device).type == "cuda"
    small = all(_many_and_small(plan, learner) for plan, learner in zip(setup.cohorts.plans, learners, strict=True))
    if config.execution.engine == "auto" and not gpu and not small:
        return False
    try:
        for learner in learners:
            refuse_unstackable(learner)
    except ConfigurationError as error:
        if config.execution.engine == "stack":
            raise
        if gpu:
            log.warning("the loop is used on %s, far slower than a stack: %s", config.execution.device, error)
        return False
    return True


def _many_and_small(plan: CohortPlan, learner: Learner) -> bool:
    """Convolutions of a stack are slow on a CPU. The learners of one federation count, whatever seeds and settings run
    beside it: more of them never change the engine, and a seed gives the same bits alone or in company in the loop.
    """
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in learner.model.modules())
    learners = len(np.unique(plan.members.learner))
    return learners >= _MANY and plan.parameters <= _SMALL and not convolves


def _workers(config: Config, setup: Setup) -> int:
    """As many processes as asked for; else one a core where there is enough to do."""
    if config.execution.workers is not None:
        return config.execution.workers
    seconds = (
        config.training.rounds * config.federation.participation * sum(_seconds(plan) for plan in setup.cohorts.plans)
    )
    wanted = min(default_workers(), sum(len(plan.members) for plan in setup.cohorts.plans))
    return wanted if seconds > (_WORTH_HANDING_OUT if is_running(wanted) else _WORTH_WORKERS) else 0


def _seconds(plan: CohortPlan) -> float:
    """What a round of a cohort takes on one core, within a factor of a few."""
    samples = int(plan.members.sizes.sum()) * plan.work.epochs
    return 1e-3 * samples / plan.work.batch_size + 5e-9 * samples * plan.parameters
