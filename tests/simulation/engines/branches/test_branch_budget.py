"""How many learners work as branches at once: all states, but the activations of a few."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.config.config import make_config
from consilience.data import load
from consilience.learner.learner import Learner
from consilience.methods import build_method
from consilience.simulation.engines.branches.branch_budget import MAX_BRANCHES, BranchBudget
from consilience.simulation.engines.branches.lanes import LANES
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.stack import memory_budget
from consilience.simulation.engines.stack.memory_budget import MemoryBudget
from consilience.simulation.setup.setup import build_setup


def plans(learners: int, model: str = "mlp") -> list[CohortPlan]:
    config = make_config({"learners": learners, "batch_size": 8, "model": model})
    data = load("digits", train=max(200, 2 * learners), test=10)
    return list(build_setup(config, build_method("fedavg"), data, [model]).cohorts.plans)


def budget(kind: type[MemoryBudget], learners: int, model: str = "mlp") -> MemoryBudget:
    found = plans(learners, model)
    return kind([Learner(plan.spec) for plan in found], found, {"inputs": np.zeros((10, 64), dtype=np.float32)})


def test_graphs_have_a_largest_number_of_branches_and_groups_one_size() -> None:
    memory = budget(BranchBudget, MAX_BRANCHES + 6)
    assert isinstance(memory, BranchBudget)
    assert memory.rows == [35] and memory.lanes == [LANES]
    assert "branches: " in memory.describe() and "70 learners of mlp in 2 groups of 35" in memory.describe()
    assert f"more for a step, {LANES} at a time)" in memory.describe()


def test_few_learners_need_few_lanes() -> None:
    memory = budget(BranchBudget, 3)
    assert isinstance(memory, BranchBudget) and memory.lanes == [3] and memory.rows == [3]


def test_only_as_many_learners_as_lanes_have_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the steps of fewer learners than there are: the stack trains them in groups, the branches together."""
    need = budget(MemoryBudget, 40, "lenet5").needs[0]
    assert need.step > 3 * need.state
    free = 40 * need.state + 15 * need.step + 40 * (need.state + need.exchanged + need.passed)
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: int(free / 0.85))
    stack, branches = budget(MemoryBudget, 40, "lenet5"), budget(BranchBudget, 40, "lenet5")
    assert stack.rows[0] < 40 and branches.rows == [40]


def test_with_little_memory_one_learner_has_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: 1)
    memory = budget(BranchBudget, 4)
    assert isinstance(memory, BranchBudget) and memory.rows == [1] and memory.lanes == [1]


def test_branches_of_processes_on_one_gpu_plan_with_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plans(40, "lenet5")
    given = [Learner(plan.spec) for plan in found], found, {"inputs": np.zeros((10, 64), dtype=np.float32)}
    free = 40 * budget(BranchBudget, 40, "lenet5").needs[0].state * 4
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: 2 * free)
    shared = BranchBudget(*given, processes=2)
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: free)
    alone = BranchBudget(*given)
    assert (shared.free, shared.rows, shared.lanes) == (free, alone.rows, alone.lanes)
