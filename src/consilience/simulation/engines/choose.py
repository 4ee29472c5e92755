"""Which engine runs a simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.learner.device import be_deterministic, has_float64
from consilience.learner.learner import Learner
from consilience.simulation.engines.base import Engine, EngineName
from consilience.simulation.engines.branches.engine import TOGETHER
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.loop.engine import LoopEngine, default_workers
from consilience.simulation.engines.loop.worker_pool import is_running
from consilience.simulation.engines.measured_choice import choose_measured, measurement_key
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.stackable import (
    CannotStackError,
    refuse_unrecordable,
    why_not_stacked,
)
from consilience.simulation.engines.step_times import step_seconds
from consilience.simulation.setup.setup import Setup

log = logging.getLogger("consilience")

_BRANCHING = ("cuda",)  # kinds of devices that users may ask for branches on
_AUTO_BRANCHES = False  # in auto: not before their tests (pytest -k cuda) have passed on a GPU
_MIN_STEPS = 300  # of a learner in a run: measuring engines takes as long as some dozens
_MIN_LEARNERS = 16  # of a federation, and
_MAX_PARAMETERS = 100_000  # of a learner, for which the stack is faster on a CPU: measured in docs/architecture.md
_MIN_SECONDS_TO_START = 5.0  # of estimated work, for which worker processes are started
_MIN_SECONDS_IF_RUNNING = 0.5  # of estimated work, for which running worker processes are used


def check_device(device: str, cluster: str | None = None) -> None:
    """Refuse a device that this machine does not have; cluster: where the learners of the run are, if not here."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigurationError(f"unknown device {device!r}; use cpu, cuda, cuda:NUMBER or mps") from None
    if kind not in ("cpu", "cuda", "mps"):
        raise ConfigurationError(f"device {device!r} is not supported; use cpu, cuda, cuda:NUMBER or mps")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError(f"device {device!r} is not available: it is for a Mac with an Apple GPU; use cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        here, instead = "torch finds no GPU on this machine", "use cpu"
        if cluster is not None:
            here += f", where the channels of a run are kept that is spread over cluster {cluster!r}"
            instead = "start it on a machine that has one, or use cpu"
        raise ConfigurationError(f"device {device!r} is not available: {here}; {instead}")
    if kind == "cuda" and (torch.device(device).index or 0) >= (there := torch.cuda.device_count()):
        raise ConfigurationError(f"device {device!r} is not available: the last GPU here is cuda:{there - 1}")


@contextmanager
def torch_configured_for(config: Config) -> Iterator[None]:
    """Configure torch for a run, and restore it afterwards: its device, and deterministic operations if asked for."""
    before = _determinism()
    if config.execution.deterministic:
        be_deterministic()
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
        if _determinism() != before:  # setting it imports torch's compiler, which takes longer than many runs
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _determinism() -> tuple[bool, bool]:
    """Whether torch uses deterministic operations only, and whether it only warns of others."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def open_engine(config: Config, setup: Setup, name: EngineName) -> AbstractContextManager[Engine]:
    """The engine that was chosen, here or on a cluster."""
    if config.execution.cluster is not None:
        from consilience.simulation.engines.ray.open import open_ray_engine

        return open_ray_engine(config, setup, name)
    if name == "loop":
        data, own = setup.data.train, setup.data.local_test_sets
        return LoopEngine(list(setup.cohorts.plans), data, _workers(config, setup), own)
    engine = _stack_or_branches(name, setup)
    log.info("%s", engine.memory.describe())
    return engine


def choose_engine(
    config: Config, setup: Setup, *, together: bool = False, before: EngineName | None = None
) -> EngineName:
    """The engine: the one asked for, refusing what it cannot do, or the fastest.

    By default: on a GPU the stack (or the branches, where `_AUTO_BRANCHES` lets them and they are measured to be
    faster); on a CPU the stack for many small learners, where overhead dominates, else the loop. together: whether
    federations are never run apart, so that the learners of all of them count. before: the engine of a run that is
    resumed.
    """
    device, asked = torch.device(config.execution.device), config.execution.engine
    if asked == "branches" and device.type not in _BRANCHING:
        raise ConfigurationError(
            f"engine is 'branches', which records learners' steps on an NVIDIA GPU, and device is "
            f"{config.execution.device!r}; use device cuda, or engine loop or stack"
        )
    if not has_float64(device):
        _refuse_without_float64(config)
        return "loop"
    if setup.data.train.stream is not None:
        _refuse_streamed(config, setup.data.train.name)
        return "loop"
    if asked == "loop":
        return "loop"
    if asked == "auto" and before is not None:
        return before
    learners = [Learner(plan.spec) for plan in setup.cohorts.plans]
    if asked == "branches":
        for learner in learners:
            refuse_unrecordable(learner)
        return "branches"
    gpu = device.type == "cuda"
    pairs = zip(setup.cohorts.plans, learners, strict=True)
    small = all(_many_and_small(plan, learner, together) for plan, learner in pairs)
    if asked == "auto" and not gpu and not small:
        return "loop"
    refused = [error for learner in learners if (error := why_not_stacked(learner)) is not None]
    if refused and asked == "stack":
        raise refused[0]
    if refused:
        return _instead_of_stack(config, refused) if gpu else "loop"
    return _measured(config, setup, learners) if asked == "auto" and gpu and _AUTO_BRANCHES else "stack"


def _instead_of_stack(config: Config, refused: Sequence[CannotStackError]) -> EngineName:
    """The engine on a GPU for learners that cannot be stacked."""
    if unrecordable := [error.reason for error in refused if not error.recordable]:
        log.warning(
            "using the loop engine on %s, which is far slower than the stack and the branches: %s",
            config.execution.device,
            unrecordable[0],
        )
        return "loop"
    if not _AUTO_BRANCHES:
        log.warning(
            "using the loop engine on %s: %s; engine = 'branches' would train many learners side by side, and is new: "
            "it has been tested on a CPU only",
            config.execution.device,
            refused[0].reason,
        )
        return "loop"
    log.info("using the branches engine: %s", refused[0].reason)
    return "branches"


def _measured(config: Config, setup: Setup, learners: Sequence[Learner]) -> EngineName:
    """The faster engine on a GPU; the stack where measuring does not pay, or would change bits from run to run."""
    plans = setup.cohorts.plans
    steps = config.training.rounds * max(
        int((-(-p.members.sizes // p.work.batch_size)).max()) * p.work.epochs for p in plans
    )
    if config.execution.deterministic or steps < _MIN_STEPS or not torch.cuda.is_available():
        return "stack"

    def measure() -> dict[str, float]:
        names = "stack", "branches"
        return {name: step_seconds(partial(_stack_or_branches, name, setup), setup) for name in names}

    device = torch.cuda.get_device_name(torch.device(config.execution.device))
    return "branches" if choose_measured(measurement_key(plans, learners, device), measure) == "branches" else "stack"


def _stack_or_branches(name: str, setup: Setup) -> StackEngine:
    """An engine that holds all states on the device."""
    return TOGETHER[name](list(setup.cohorts.plans), setup.data.train, setup.data.local_test_sets)


def _refuse_streamed(config: Config, data: str) -> None:
    """Refuse what streamed samples cannot do; say that a GPU would be faster otherwise."""
    execution = config.execution
    if execution.cluster is not None:
        raise ConfigurationError(
            f"cluster is {execution.cluster!r}, and data set {data!r} is streamed, which one process reads; leave "
            f"cluster out, or make the data set with Dataset.from_torch, which is sent to all machines"
        )
    if execution.engine in ("stack", "branches"):
        raise ConfigurationError(
            f"data set {data!r} is streamed, and learners that train together need their samples in memory; leave out "
            f"engine = {execution.engine!r}, or make the data set with Dataset.from_torch"
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
