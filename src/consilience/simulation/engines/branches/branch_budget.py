"""How many learners work as branches at once: their states all fit, and the activations of a few of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from consilience.learner.learner import Learner
from consilience.simulation.engines.branches.lanes import LANES
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.stack.memory_budget import MemoryBudget, MemoryNeeds, size_in_words

MAX_BRANCHES = 64
"""Learners in one graph: with more, recording takes long; the graph is replayed for one group after the other."""


class BranchBudget(MemoryBudget):
    """What fits: `rows` learners of each cohort at once, of which `lanes` have activations."""

    engine = "branches"

    def __init__(
        self,
        learners: Sequence[Learner],
        plans: Sequence[CohortPlan],
        data: Mapping[str, NDArray[Any]],
        processes: int = 1,
    ) -> None:
        self.lanes: list[int] = []
        super().__init__(learners, plans, data, processes)

    def fit(self, need: MemoryNeeds, budget: float, rows: int) -> int:
        """How many of `rows` learners fit into this many bytes, in groups of nearly one size."""
        lanes = 1 if need.busy else max(1, min(LANES, rows, int(budget / 2 // need.step)))
        self.lanes.append(lanes)
        each = need.state + need.exchanged + need.passed
        most = max(1, min(int((budget - lanes * need.step) // each), MAX_BRANCHES))
        groups = -(-rows // most)
        return -(-rows // groups)

    def describe_step(self, cohort: int) -> str:
        """What the steps of learners take together."""
        lanes = min(self.lanes[cohort], self.rows[cohort])
        return f"{size_in_words(self.needs[cohort].step)} more for a step, {lanes} at a time"
