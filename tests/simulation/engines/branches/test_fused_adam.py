"""The fused kernel takes the steps of `optimizers.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from consilience.exchanges import Weights
from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.learner.state import LearnerState
from consilience.method import Role
from consilience.models import SplitModel
from consilience.objectives import TwoAnswers
from consilience.optimizers import SGD, Adam, AdamW, Optimizer
from consilience.simulation.engines.branches.fused_adam import has_fused_adam, take_fused_step

SIZE = 7


def learner(optimizer: Optimizer, role: Role | None = None, **spec: Any) -> Learner:
    def build() -> SplitModel:
        return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Linear(3, 2))

    return Learner(LearnerSpec(build, role or Role(), optimizer, (1, 2, 2), "tiny", dtype=torch.float64, **spec))


def start() -> LearnerState:
    torch.manual_seed(3)
    slots = {"first": torch.randn(1, SIZE).double(), "second": torch.rand(1, SIZE).double()}
    return LearnerState(torch.randn(1, SIZE).double(), torch.zeros(1, 0), torch.tensor([4]), optimizer=slots)


@pytest.mark.parametrize(
    "optimizer",
    [Adam(lr=0.01), Adam(lr=0.1, weight_decay=0.1, beta1=0.8, clip=0.5), AdamW(lr=0.01, weight_decay=0.1, clip=100.0)],
    ids=["adam", "adam, decayed and clipped", "adamw"],
)
def test_three_fused_steps_equal_those_of_the_optimizer(optimizer: Adam) -> None:
    state, trained = start(), learner(optimizer)
    parameters, slots = state.parameters.clone(), {k: v.clone() for k, v in state.optimizer.items()}
    for step in (5, 6, 7):
        gradient = torch.randn(1, SIZE).double()
        parameters, slots = optimizer.update(parameters, gradient, slots, step)
        take_fused_step(trained, state, gradient, None)
        assert state.step.tolist() == [step]
    torch.testing.assert_close(state.parameters, parameters, rtol=1e-12, atol=1e-12)
    for name, slot in slots.items():
        torch.testing.assert_close(state.optimizer[name], slot, rtol=1e-12, atol=1e-12)


def test_a_learner_without_a_step_left_stays_as_it_is() -> None:
    state, before = start(), start()
    take_fused_step(learner(Adam(lr=0.1)), state, torch.ones(1, SIZE).double(), torch.tensor([False]))
    for path, tensor in state.flatten().items():
        assert torch.equal(tensor, before.flatten()[path]), path
    take_fused_step(learner(Adam(lr=0.1)), state, torch.ones(1, SIZE).double(), torch.tensor([True]))
    assert state.step.tolist() == [5] and (state.parameters != before.parameters).all()


def test_the_kernel_is_not_used_where_it_does_less_than_the_optimizer() -> None:
    adam = Adam(lr=0.1)
    assert has_fused_adam(learner(adam)) and has_fused_adam(learner(AdamW(lr=0.1)))
    assert has_fused_adam(learner(adam, Role(exchanges=(Weights(),))))
    assert not has_fused_adam(learner(SGD(lr=0.1)))
    assert not has_fused_adam(learner(replace(adam, count_each=True)))
    assert not has_fused_adam(learner(adam, varied={"optimizer": ("lr",)}))
    own_head = Role(TwoAnswers(own_head=True))
    assert not has_fused_adam(learner(adam, own_head)), "the head's steps are longer"
