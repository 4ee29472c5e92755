"""The branches engine: every learner takes its own step, many at a time as branches of one CUDA graph.

It is the stack engine with another way of doing for all learners what is written for one: one after the other on each
of a few streams instead of under `vmap`. So it needs no batching rules, and runs whatever a CUDA graph can record. On a
CPU the branches are done one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from consilience.learner.learner import Learner
from consilience.simulation.engines.branches.branch_budget import BranchBudget
from consilience.simulation.engines.branches.branch_step import BranchStep
from consilience.simulation.engines.branches.lanes import Lanes
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.rows import ForAll
from consilience.simulation.engines.stack.stacked_step import StackedStep


class BranchEngine(StackEngine):
    """Holds the learners' states and does jobs on them, each learner's as a branch of its own."""

    name = "branches"
    memory: BranchBudget
    for_all: ForAll = staticmethod(Lanes(torch.device("cpu"), 0).for_all)
    _explaining: Callable[[Learner], AbstractContextManager[None]] = staticmethod(lambda learner: nullcontext())
    _budget = BranchBudget

    def _make_step(self, cohort: int, rows: int, private: bool) -> StackedStep:
        """How so many rows of a cohort take steps."""
        return BranchStep(self.learners[cohort], rows, self.memory.lanes[cohort], private)


TOGETHER: dict[str, type[StackEngine]] = {engine.name: engine for engine in (StackEngine, BranchEngine)}
"""By name, the engines that hold all states on the device and train learners together."""
