"""The kinds of tasks on tiny arrays, with results computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score
from torch import Tensor
from torch.func import vmap

from consilience.errors import DataError, UnknownName
from consilience.functional.group_means import group_means, sampled_membership
from consilience.kinds import ALL_KINDS, KINDS, group_count, kind_named, kind_of
from consilience.kinds.regression import BINS, in_users_unit, measured_target, standardized
from consilience.task import Target, Task

CLASSES = Task(3, 2)
LABELS = Task(3, 2, target=Target("multi-label"))
NUMBER = Task(1, 2, target=Target("regression", edges=(-0.5, 0.5), mean=10.0, std=4.0))
SETS = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]])
NUMBERS = torch.tensor([-2.0, 0.0, 0.5, 3.0])


def test_kinds_are_found_by_name() -> None:
    assert tuple(KINDS) == ALL_KINDS == ("single-label", "multi-label", "regression")
    assert [kind_of(task).metric.name for task in (CLASSES, LABELS, NUMBER)] == ["accuracy", "F1", "R²"]
    assert [group_count(task) for task in (CLASSES, LABELS, NUMBER)] == [3, 3, 3]
    with pytest.raises(UnknownName, match="kind of task"):
        kind_named("regresion")


def test_members_of_groups() -> None:
    valid = torch.tensor([1.0, 1.0, 0.0, 1.0])
    classes = kind_of(CLASSES).membership(CLASSES, torch.tensor([0, 2, 1, 2]), valid)
    assert classes.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]]
    labels = kind_of(LABELS).membership(LABELS, SETS, valid)
    assert labels.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]]
    bins = kind_of(NUMBER).membership(NUMBER, NUMBERS, torch.ones(4))  # 0.5 is not above its edge
    assert bins.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_a_label_s_prototype_is_the_mean_of_the_samples_that_have_it() -> None:
    features = torch.tensor([[2.0, 0.0], [4.0, 2.0], [9.0, 9.0], [0.0, 6.0]])
    member = kind_of(LABELS).membership(LABELS, SETS, torch.ones(4))
    means, count = group_means(features, member, min_count=2)
    assert means.tolist() == [[3.0, 1.0], [2.0, 4.0], [0.0, 0.0]]  # one sample has the last label: it counts as absent
    assert count.tolist() == [2, 2, 0]


def test_rows_are_pulled_toward_the_mean_of_their_labels_means() -> None:
    means, count = torch.tensor([[2.0, 0.0], [4.0, 6.0], [8.0, 8.0]]), torch.tensor([5.0, 5.0, 0.0])
    expected, known = kind_of(LABELS).expected(LABELS, SETS, means, count)
    assert expected.tolist() == [[2, 0], [3, 3], [0, 0], [4, 6]]  # of the last row one label has no mean
    assert known.tolist() == [1, 1, 0, 1]
    bins, there = kind_of(NUMBER).expected(NUMBER, NUMBERS, means, count)
    assert bins.tolist() == [[2, 0], [4, 6], [4, 6], [8, 8]] and there.tolist() == [1, 1, 1, 0]


def test_the_pull_has_the_gradient_of_the_mean_distance_to_each_label_s_mean() -> None:
    means, count = torch.tensor([[2.0, 0.0], [4.0, 6.0], [8.0, 8.0]]), torch.ones(3)
    row = torch.tensor([[1.0, 5.0]], requires_grad=True)
    expected, _ = kind_of(LABELS).expected(LABELS, SETS[1:2], means, count)
    (pulled,) = torch.autograd.grad((row - expected).square().mean(), row)
    (each,) = torch.autograd.grad((row - means[:2]).square().mean(), row)
    torch.testing.assert_close(pulled, each)


def test_losses_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    both = kind_of(LABELS).loss(logits, torch.tensor([[1, 0]]))
    assert both.item() == pytest.approx(math.log(2) + math.log(4))  # of one half, and of one quarter
    assert kind_of(NUMBER).loss(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])).item() == 2.5
    assert kind_of(CLASSES).loss(torch.zeros(1, 3), torch.tensor([1])).item() == pytest.approx(math.log(3))


def test_f1_by_hand_and_as_scikit_learn_has_it() -> None:
    kind = kind_of(LABELS)
    logits = torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [-1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
    sums = kind.score_sums(LABELS, logits, SETS)
    assert sums.tolist() == [2, 1, 1, 0, 1, 1, 0, 1, 0]  # right, wrong and missed, of each label
    totals = kind.totals(LABELS.target, 3, SETS.numpy())
    assert kind.score(sums.numpy(), totals).item() == pytest.approx(100 * 8 / (8 + 2 + 1))
    assert kind.score(sums.numpy(), totals).item() == pytest.approx(
        100 * f1_score(SETS.numpy(), (logits > 0).numpy(), average="micro")
    )


def test_f1_of_one_s_own_labels_weighs_labels_by_their_shares() -> None:
    kind, sums = kind_of(LABELS), np.array([2, 1, 1, 0, 1, 1, 0, 1, 0])
    totals = np.array([[2.0], [2.0], [1.0]])
    only_first = kind.score(sums, totals, np.array([1.0, 0.0, 0.0]))
    assert only_first.item() == 100.0  # of the first label everything is right
    assert kind.score(sums, totals, np.array([0.4, 0.4, 0.2])).item() == pytest.approx(kind.score(sums, totals).item())


def test_r2_by_hand_and_as_scikit_learn_has_it() -> None:
    kind = kind_of(NUMBER)
    logits = torch.tensor([[-1.0], [0.0], [1.0], [1.0]])
    sums = kind.score_sums(NUMBER, logits, NUMBERS)
    assert sums.tolist() == [1.0, 0.25, 4.0]  # squared errors of each bin
    totals = kind.totals(NUMBER.target, 1, NUMBERS.double().numpy())
    assert totals.tolist() == [[1, -2, 4], [2, 0.5, 0.25], [1, 3, 9]]
    assert kind.score(sums.numpy(), totals).item() == pytest.approx(100 * r2_score(NUMBERS, logits[:, 0]))
    assert kind.further_scores(NUMBER.target, sums.numpy(), totals)["rmse"] == pytest.approx(4 * math.sqrt(5.25 / 4))
    variance = NUMBERS.double().var(correction=0).item()
    own = kind.score(sums.numpy(), totals, np.array([0.5, 0.5, 0.0])).item()
    assert own == pytest.approx(100 * (1 - (0.5 * 1.0 + 0.5 * 0.125) / variance))


def test_r2_of_held_out_samples_is_relative_to_the_variance_of_the_tests() -> None:
    kind = kind_of(NUMBER)
    tests = kind.totals(NUMBER.target, 1, np.array([-1.0, 1.0]))
    one = kind.totals(NUMBER.target, 1, np.array([2.0]))
    sums = kind.score_sums(NUMBER, torch.tensor([[1.5]]), torch.tensor([2.0])).numpy()
    assert kind.score(sums, one, reference=tests).item() == pytest.approx(75.0)
    assert math.isnan(kind.score(sums, one).item())  # one sample has no variance of its own


@pytest.mark.parametrize("task", [CLASSES, LABELS, NUMBER])
def test_padding_counts_for_nothing(task: Task) -> None:
    kind = kind_of(task)
    targets = {1: NUMBERS, 3: SETS if task is LABELS else torch.tensor([0, 2, 1, 2])}[task.classes]
    logits = torch.randn(6, task.classes, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([targets, kind.padding(targets[:2])])
    found = kind.score_sums(task, logits, padded)
    assert found.tolist() == kind.score_sums(task, logits[:4], targets).tolist()
    assert len(found) == kind.columns(task)
    assert kind.example_targets(task, 4).shape == targets.shape


@pytest.mark.parametrize("task", [CLASSES, LABELS, NUMBER])
def test_functions_of_tensors_run_under_vmap(task: Task) -> None:
    kind = kind_of(task)
    targets = {1: NUMBERS, 3: SETS if task is LABELS else torch.tensor([0, 2, 1, 2])}[task.classes]
    logits = torch.randn(2, 4, task.classes, generator=torch.Generator().manual_seed(0))
    stacked = torch.stack([targets, targets])
    calls: list[Callable[[Tensor, Tensor], Tensor]] = [kind.loss, lambda x, y: kind.score_sums(task, x, y)]
    for call in calls:
        torch.testing.assert_close(vmap(call)(logits, stacked), torch.stack([call(x, targets) for x in logits]))
    members = vmap(lambda y: kind.membership(task, y, torch.ones(4)))(stacked)
    torch.testing.assert_close(members[1], kind.membership(task, targets, torch.ones(4)))


def test_of_each_label_the_samples_with_the_smallest_draws_are_chosen() -> None:
    member = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    chosen = sampled_membership(member, torch.tensor([0.9, 0.1, 0.5, 0.7], dtype=torch.float64), 2)
    assert chosen.tolist() == [[0, 0], [1, 0], [1, 1], [0, 1]]


def test_targets_are_standardized_and_divided_into_even_bins() -> None:
    numbers = np.arange(100.0) * 3 + 7
    target = measured_target("targets", numbers)
    inside = kind_named("regression").counts(target, 1, standardized(target, numbers))
    assert inside.tolist() == [20] * BINS and len(target.edges) == BINS - 1
    np.testing.assert_allclose(in_users_unit(target, standardized(target, numbers)), numbers)
    few = measured_target("targets", np.array([0.0, 0.0, 0.0, 5.0]))  # fewer different values than bins
    assert kind_named("regression").counts(few, 1, standardized(few, np.array([0.0, 5.0]))).tolist() == [1, 1]
    with pytest.raises(DataError, match="are all 4: a constant cannot be learned"):
        measured_target("targets", np.full(9, 4.0))
