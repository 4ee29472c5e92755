"""How many learners fit on a device at once: estimated before a run from what a learner's state and one step take."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.learner.batches import batch_widths
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Learner
from consilience.learner.passes import EVALUATED_ROWS
from consilience.simulation.engines.cohort import CohortPlan

log = logging.getLogger("consilience")

_USABLE_SHARE = 0.85  # of the free memory: libraries need the rest for themselves
_STEP_FACTOR = 2.5  # memory of a step, as a multiple of what the forward pass saves for the backward pass
_OPTIMIZER_COPIES = 5  # copies of a learner's parameters that exist while an optimizer updates them
_EXCHANGE_COPIES = 4  # of what is exchanged: the upload, in the channel, held, and on the way to the learner
_GRADIENT_COPIES = 4  # of a sample's own gradient in a private step: by parameter, end to end, clipped, and in between
_GROUP_BYTES = 2**33  # of the learners that train at once: with more, a step takes more memory and is no faster
_PASS_SHARE = 0.15  # of the free memory, for one forward pass when nothing is trained
_PASS_BYTES = 2**29  # that a pass works on at once, to keep a device busy
_BUSY_BYTES = 2**30  # saved by a forward pass, from which on one learner keeps a device busy by itself
_DEFAULT_BYTES = 2**33  # of main memory, where the system does not report it
_MAX_VALUES = 2**31 - 1  # in one tensor: libraries count them with 32 bits


class MemoryBudget:
    """What fits: `rows` learners of each cohort at once, with the states of all learners on the device `home`.

    processes: how many share the device, each with learners of its own.
    """

    engine = "stack"

    def __init__(
        self,
        learners: Sequence[Learner],
        plans: Sequence[CohortPlan],
        data: Mapping[str, NDArray[Any]],
        processes: int = 1,
    ) -> None:
        self.device = torch.device(plans[0].spec.device)
        self.processes, self.free = processes, equal_share(free_bytes(self.device), processes)
        self.passing = _PASS_SHARE * self.free
        item = plans[0].spec.dtype.itemsize
        self.data = sum(array.size * (item if array.dtype.kind == "f" else 8) for array in data.values())
        self.data += sum(learner.modules.frozen.nbytes for learner in learners)
        self.needs = [MemoryNeeds(learner, plan) for learner, plan in zip(learners, plans, strict=True)]
        self.counts = [len(plan.members) for plan in plans]
        self.state = sum(need.state * n for need, n in zip(self.needs, self.counts, strict=True))
        budget = _USABLE_SHARE * self.free - self.data
        fits = self.state < 0.5 * budget
        self.home = self.device if fits else torch.device("cpu")
        budget = (budget - (self.state if fits else 0)) / len(plans)  # trainers of every cohort are kept ready
        self.rows = [self.fit(need, budget, n) for need, n in zip(self.needs, self.counts, strict=True)]

    def fit(self, need: MemoryNeeds, budget: float, rows: int) -> int:
        """How many of `rows` learners fit into this many bytes at once."""
        return need.fit(min(budget, _GROUP_BYTES), rows)

    def shrink(self, cohort: int, rows: int) -> None:
        """Use fewer learners at once from now on: fewer fit than was estimated."""
        self.rows[cohort] = rows
        self.passing /= 2
        seen = self.pass_rows(cohort, 1)
        fewer = f"{rows} learners" if rows > 1 else f"one learner, and {seen} samples in a pass,"
        log.warning("out of memory on %s: continuing with %s at a time", self.device, fewer)

    def pass_rows(self, cohort: int, rows: int) -> int:
        """How many samples of each learner one forward pass takes when nothing is trained."""
        return max(1, int(self.passing / (rows * self.needs[cohort].sample)))

    def pass_of(self, cohort: int, rows: int, samples: int = EVALUATED_ROWS) -> tuple[int, int]:
        """How many learners, and how many samples of each, one forward pass takes when nothing is trained.

        Learners of a large model go one after the other: each fills the device by itself, and a single model is faster
        than a stack.
        """
        each = min(samples, EVALUATED_ROWS) * self.needs[cohort].sample
        together = max(1, min(rows, int(min(self.passing, _PASS_BYTES) / each)))
        return together, self.pass_rows(cohort, together)

    def describe(self) -> str:
        """What fits, in one line."""
        parts = []
        for i, (need, n, rows) in enumerate(zip(self.needs, self.counts, self.rows, strict=True)):
            groups = -(-n // rows)
            cut = "at once" if groups == 1 else f"in {groups} groups of {rows}"
            each = f"{size_in_words(need.state)} of state each, {self.describe_step(i)}"
            parts.append(f"{n} learners of {need.model} {cut} ({each})")
        where = "" if self.home == self.device else f"; their {size_in_words(self.state)} of state stay in main memory"
        free = f"{self.device} has {size_in_words(self.free)} free"
        free += f" for each of {self.processes} processes" * (self.processes > 1)
        return f"{self.engine}: {free}; {size_in_words(self.data)} of data; {'; '.join(parts)}{where}"

    def describe_step(self, cohort: int) -> str:
        """What the steps of learners take."""
        return f"{size_in_words(self.needs[cohort].step)} more for a step"


class MemoryNeeds:
    """What a learner of a cohort takes, in bytes: its state, a step, and a sample in a forward pass."""

    def __init__(self, learner: Learner, plan: CohortPlan) -> None:
        self.model, self.batch = learner.task.model, _widest_batch(plan)
        self.state = sum(tensor.nbytes for tensor in template_state(learner).tensors())
        kept, largest = _kept(learner, self.batch)
        self.sample = max(kept // self.batch, 1)
        self.exchanged = _exchanged(learner)
        self.step = int(_STEP_FACTOR * kept) + _OPTIMIZER_COPIES * learner.binding.gradient.nbytes + self.exchanged
        self.step += _private_step(learner, self.sample)
        seen = learner.task.width + math.prod(learner.task.inputs)  # of each sample, in the pass that exchanges share
        self.passed = int(plan.members.sizes.max()) * 2 * seen * learner.dtype.itemsize if learner.channels else 0
        self.largest, self.busy = largest, kept >= _BUSY_BYTES and learner.device.type == "cuda"

    def fit(self, budget: float, rows: int) -> int:
        """How many of `rows` learners fit into this many bytes, in groups of nearly one size.

        Where one keeps the device busy they go one after the other: a convolution of one model is faster than a grouped
        one, and no learner waits for another with more samples.
        """
        if self.busy:
            return 1
        most = max(1, min(int(budget // (self.state + self.step + self.passed)), _MAX_VALUES // max(self.largest, 1)))
        groups = -(-rows // most)
        return -(-rows // groups)


def _widest_batch(plan: CohortPlan) -> int:
    """How many samples the largest batch of a cohort has: learners with few samples have smaller ones."""
    even, longest = bool(plan.members.even.all()), int(plan.members.sizes.max())
    return max(batch_widths(plan.work, longest, even=even), default=plan.work.batch_size)


def _private_step(learner: Learner, sample: int) -> int:
    """Bytes that a private step takes beyond others: every sample's own gradient, and a larger batch."""
    privacy = learner.spec.privacy
    if privacy is None or not privacy.steps:
        return 0
    room = max(plan.capacity for plan in privacy.steps.values())
    return room * int(_GRADIENT_COPIES * learner.binding.gradient.nbytes + _STEP_FACTOR * sample)


def _exchanged(learner: Learner) -> int:
    """Bytes of a learner's uploads and of the answers it holds, where every learner holds a different one."""
    sizes = [math.prod(t.shape) for channel in learner.channels.values() for t in channel.tensors.values()]
    return _EXCHANGE_COPIES * sum(sizes) * learner.dtype.itemsize


def _kept(learner: Learner, batch: int) -> tuple[int, int]:
    """Bytes that one learner's forward pass keeps for the backward one, and how many values the largest tensor has."""
    seen: dict[int, tuple[int, int]] = {}
    shared = learner.modules.frozen.addresses()  # kept once for all learners

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in shared:
            seen[tensor.data_ptr()] = tensor.nbytes, tensor.numel()
        return tensor

    learner.modules.set_training(True)
    objective = learner.role.objective
    inputs = torch.zeros((batch, *learner.task.inputs), dtype=learner.dtype, device=learner.device)
    draws = torch.zeros((objective.batch_draws, batch), dtype=torch.float64, device=learner.device)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        prepared = objective.prepare(learner.task, inputs, draws)
        learner.modules.forward(prepared)
        if objective.trains_own_model:
            learner.modules.run_own_model(prepared)
    return sum(size for size, _ in seen.values()), max((n for _, n in seen.values()), default=1)


def equal_share(free: int, processes: int) -> int:
    """How much of a device's free memory each of several processes plans with, so that all fit.

    They look at nearly the same time, when none has taken its share yet. One that looks later plans with less.
    """
    return free // processes


def free_bytes(device: torch.device) -> int:
    """Bytes of memory that are free on a device."""
    if device.type == "cuda":
        free_unused(device)
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:  # not on Linux
        return _DEFAULT_BYTES
    return int(meminfo.partition("MemAvailable:")[2].split()[0]) * 1024


def free_unused(device: torch.device) -> None:
    """Free memory that is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def size_in_words(count: float) -> str:
    """A number of bytes with its unit: 812 B, 3.12 KiB, 139 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 100 else f"{count:.3g} {unit}"
