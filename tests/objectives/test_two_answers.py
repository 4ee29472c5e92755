"""Two answers: the calibrated loss, the private head, and what never leaves a learner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from consilience import Dataset, load, simulate
from consilience.errors import ConfigurationError, DataError
from consilience.exchanges.base import View
from consilience.functional.own_answer import choose_weights
from consilience.methods import build_method
from consilience.objectives import CrossEntropy, SimCLR, TwoAnswers, build_objective
from consilience.task import Task

TASK = Task(classes=3, width=2)
COUNTS = torch.tensor([6.0, 3.0, 0.0])


def view(objective: TwoAnswers, head: torch.nn.Module | None = None) -> View:
    """Two samples of a learner that has no sample of the third class."""
    empty = torch.empty(0)
    return View(
        task=TASK,
        parameters={},
        buffers={},
        inputs=torch.zeros(2, 4),
        features=torch.tensor([[1.0, 2.0], [0.5, -1.0]], requires_grad=True),
        logits=torch.tensor([[0.2, 0.1, 0.4], [0.0, 0.3, 0.1]], requires_grad=True),
        targets=torch.tensor([0, 1]),
        valid=torch.ones(2),
        classify=lambda features: features,
        samples=empty,
        modules={} if head is None else {"own_head": head},
        objective_state=objective.init_state(TASK, COUNTS),
    )


def test_the_loss_adds_the_log_of_smoothed_class_shares() -> None:
    objective = TwoAnswers()
    seen = view(objective)
    shares = np.array([6.05, 3.05, 0.05]) / 9.15
    expected = F.cross_entropy(seen.logits + torch.tensor(np.log(shares), dtype=torch.float32), seen.targets)
    assert objective.loss(seen).item() == pytest.approx(expected.item(), rel=1e-6)
    assert objective.own_logits(seen).detach().numpy() == pytest.approx(
        seen.logits.detach().numpy() + np.log(shares), rel=1e-5
    )
    assert objective.own_logits(seen).argmax(1).tolist() == [0, 0]  # the class it has most of
    assert seen.logits.argmax(1).tolist() == [2, 1]  # what the samples say


def test_the_private_head_starts_at_zero_and_does_not_change_the_features() -> None:
    objective = TwoAnswers(own_head=True)
    head = objective.modules(TASK)["own_head"]
    seen = view(objective, head)
    assert torch.equal(objective.own_logits(seen), (seen.logits + seen.objective_state["log_shares"]).detach())
    torch.nn.init.constant_(head.get_parameter("weight"), 0.5)
    common, without = view(objective), replace(objective, own_head=False)
    own_gradients = torch.autograd.grad(
        objective.loss(seen), [seen.features, seen.logits, head.get_parameter("weight")], allow_unused=True
    )
    (common_gradient,) = torch.autograd.grad(without.loss(common), [common.logits])
    assert own_gradients[0] is None and torch.equal(own_gradients[1], common_gradient)
    assert own_gradients[2].abs().sum() > 0


def test_objectives_are_built_by_name() -> None:
    assert build_objective("calibrated") == TwoAnswers()
    assert build_objective("calibrated", own_head=True) == TwoAnswers(own_head=True)
    assert build_objective("cross-entropy", own_head=True) == TwoAnswers(calibrated=False, own_head=True)
    assert type(build_objective("cross-entropy")) is CrossEntropy and isinstance(build_objective("simclr"), SimCLR)
    with pytest.raises(ConfigurationError, match="own_head trains a classifier, and objective 'simclr' learns without"):
        build_method("fedavg", {"objective": "simclr", "own_head": True})


def test_the_loss_holds_the_private_head_near_zero() -> None:
    objective, without = TwoAnswers(own_head=True), TwoAnswers()
    head = objective.modules(TASK)["own_head"]
    torch.nn.init.constant_(head.get_parameter("weight"), 0.5)
    torch.nn.init.constant_(head.get_parameter("bias"), 1.0)
    seen = view(objective, head)
    own = F.cross_entropy(objective.own_logits(seen), seen.targets)
    decay = 0.01 * (6 * 0.25 + 3 * 1.0)
    assert objective.loss(seen).item() == pytest.approx((without.loss(seen) + own).item() + decay, rel=1e-6)


def test_weights_are_chosen_by_the_likelihood_of_held_out_samples() -> None:
    first, second = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.4, 0.6]]).log()
    chosen = choose_weights(torch.stack([first, second]), torch.tensor([0]), torch.ones(1))
    tried = np.array([0, 0.25, 0.5, 0.75, 1])
    likelihood = 0.8 * tried + 0.4 * (1 - tried)  # of one sample of the first class
    expected = (tried * likelihood).sum() / likelihood.sum()
    assert chosen.tolist() == pytest.approx([expected, 1 - expected], rel=1e-6)
    many = choose_weights(torch.stack([first, second]).expand(2, 200, 2), torch.zeros(200).long(), torch.ones(200))
    assert many.tolist() == pytest.approx([1, 0], abs=1e-6)
    padding = choose_weights(torch.stack([first, second, second]), torch.tensor([0]), torch.zeros(1))
    assert padding.tolist() == pytest.approx([1 / 3] * 3)


def test_classes_that_a_learner_holds_out_count_in_its_own_accuracy() -> None:
    small: dict[str, Any] = {"learners": 2, "rounds": 1, "train": 6, "test": 100, "seed": 2, "validation": 0.5}
    own = simulate(method="independent", **small | {"rounds": 200, "lr": 0.01, "eval_every": 200})
    assert (own.history["accuracy_train"][-1] == 100).all()
    assert (own.history["accuracy_own"][-1] < 70).all()  # half of its samples are of classes it does not train on


def test_without_held_out_samples_nothing_is_chosen() -> None:
    objective = TwoAnswers(own_head=True, own_model=True)
    assert objective.for_held_out(False) == TwoAnswers(own_head=True)
    assert objective.for_held_out(True) == TwoAnswers(own_head=True, own_model=True, chooses=True)
    assert TwoAnswers().for_held_out(True) == TwoAnswers()  # there is one answer
    assert CrossEntropy().for_held_out(True) == CrossEntropy()
    assert objective.for_held_out(True).init_state(TASK, COUNTS)["answer_weights"].tolist() == pytest.approx(
        [1 / 3] * 3
    )


@pytest.fixture(scope="module")
def skewed() -> dict[str, Any]:
    return {"learners": 3, "rounds": 8, "partition": "dirichlet(0.1)", "train": 300, "seed": 1000, "eval_every": 8}


def test_neither_shares_nor_head_enter_an_upload(skewed: dict[str, Any]) -> None:
    plain = simulate(method="fedavg", **skewed | {"rounds": 1, "eval_every": 1})
    both = simulate(method="fedavg:objective=calibrated:own_head=true", **skewed | {"rounds": 1, "eval_every": 1})
    for key in ("bytes.up", "bytes.down", "values.up"):
        assert np.array_equal(plain.history[key], both.history[key])


@pytest.mark.parametrize(("optimizer", "times"), [("adam", 10), ("adamw", 10), ("sgd", None)])
def test_the_private_head_takes_longer_steps_with_an_adaptive_optimizer(optimizer: str, times: int | None) -> None:
    method = "fedavg:objective=calibrated:own_head=true"
    one_step: dict[str, Any] = {
        "learners": 2,
        "rounds": 1,
        "train": 40,
        "batch_size": 40,
        "lr": 0.001,
        "optimizer": optimizer,
    }
    head = simulate(method=method, **one_step).model(learner=0, answer="own").get_parameter("head.bias")
    moved = head.abs().max().item()
    assert moved == pytest.approx(0.001 * times, rel=1e-3) if times else 0 < moved < 0.001


def test_both_answers_are_better_under_skew(skewed: dict[str, Any]) -> None:
    plain = simulate(method="fedavg", **skewed).summary()
    both = simulate(method="fedavg:objective=calibrated:own_head=true", **skewed).summary()
    assert both["accuracy_own"]["mean"] > plain["accuracy_own"]["mean"] + 5
    assert both["accuracy_own"]["mean"] > both["accuracy"]["mean"]


def test_a_learner_with_one_class_answers_for_it_and_for_everybody() -> None:
    digits = load("digits", train=200, test=100)
    data = replace(digits, owners=(digits.targets > 0).astype(np.int64), owner_names=("zeros", "others"))
    made = simulate(
        data=data, method="fedavg:objective=calibrated:own_head=true", partition="owners", learners=2, rounds=2
    )
    own = made.history["accuracy_own"][-1, 0]
    assert np.isfinite(own).all() and own[0] == 100  # the learner that has class 0 alone


def test_a_class_that_only_the_test_set_has_is_refused() -> None:
    digits = load("digits", train=200, test=100)
    keep = digits.targets != 9
    tests = digits.test_inputs, digits.test_targets
    with pytest.raises(DataError, match="is 9, which no training sample has, so it cannot be learned"):
        Dataset.from_arrays("nine digits", digits.inputs[keep], digits.targets[keep], *tests, classes=10)
