"""The answers that learners hold: looked up by number, for one learner and stacked for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from consilience.channels import Answer
from consilience.simulation.engines.answers import AnswerStore, received
from consilience.simulation.engines.stack.stacked_answers import (
    AnswerParts,
    StackedAnswers,
    one_received,
    stack_answers,
)

CPU = torch.device("cpu")


def batch(first: int, answers: int) -> Answer:
    """Answers whose values are their number and whose count is ten times their number."""
    numbers = torch.arange(first, first + answers, dtype=torch.float64)
    return Answer({"mean": numbers[:, None].expand(-1, 3).clone()}, 10 * numbers)


@pytest.fixture
def store() -> AnswerStore:
    """A store of three batches: answers 0 and 1, 2 to 6, and 7."""
    full = AnswerStore([["exchange"]], [4])
    assert [full.add(batch(first, answers)) for first, answers in ((0, 2), (2, 5), (7, 1))] == [0, 2, 7]
    return full


def stacked_answers(store: AnswerStore, *numbers: int) -> StackedAnswers:
    return stack_answers(store.batches, {"exchange": np.array(numbers)}, ["exchange"], CPU)["exchange"]


def numbers_in(stacked: StackedAnswers) -> Any:
    """The numbers of the answers: one per learner, or the shared one."""
    assert torch.equal(stacked.count * 1.0, 10 * stacked.tensors["mean"][..., 0])
    return stacked.tensors["mean"][..., 0].tolist()


@pytest.mark.parametrize(
    "numbers",
    [(0, 1), (3, 3, 2, 6), (7, 0, 4, 0, 7, 1), (6, 7), (1, 2), (5, 1)],
    ids=["a whole batch", "one batch", "all batches", "two of three", "across a border", "not in order"],
)
def test_stacked_answers_follow_the_given_numbers(store: AnswerStore, numbers: tuple[int, ...]) -> None:
    stacked = stacked_answers(store, *numbers)
    assert numbers_in(stacked) == list(numbers)
    assert not stacked.shared and stacked.dims == ({"mean": 0}, 0, 0)
    assert stacked.tensors["mean"].shape == (len(numbers), 3) and stacked.fresh.all()


@pytest.mark.parametrize("number", [0, 1, 4, 7])
def test_answer_held_by_all_learners_is_stored_once(store: AnswerStore, number: int) -> None:
    stacked = stacked_answers(store, number, number, number)
    assert stacked.shared and stacked.dims == ({"mean": None}, None, 0)
    assert stacked.tensors["mean"].tolist() == [number] * 3 and float(stacked.count) == 10 * number
    assert stacked.fresh.tolist() == [True] * 3


def test_answer_of_a_single_learner_is_shared(store: AnswerStore) -> None:
    assert stacked_answers(store, 5).shared and numbers_in(stacked_answers(store, 5)) == 5.0


def test_number_minus_one_means_no_fresh_answer(store: AnswerStore) -> None:
    some = stacked_answers(store, 3, -1, 0)
    assert some.fresh.tolist() == [True, False, True] and not some.shared
    assert [numbers_in(some)[i] for i in (0, 2)] == [
        3.0,
        0.0,
    ]  # the second value does not matter
    same = stacked_answers(store, -1, 4, 4)
    assert same.fresh.tolist() == [False, True, True] and same.shared and numbers_in(same) == 4.0


def test_each_exchange_has_its_own_answers(store: AnswerStore) -> None:
    store.add(Answer({"other": torch.ones(2, 4, 5)}, torch.ones(2, 4)))
    held = {"a": np.array([1, 4]), "b": np.array([9, 8]), "c": np.array([0, 0])}
    found = stack_answers(store.batches, held, ["b", "a"], CPU)
    assert list(found) == ["b", "a"] and numbers_in(found["a"]) == [1, 4]
    assert found["b"].tensors["other"].shape == (2, 4, 5) and found["b"].count.shape == (2, 4)


def test_answers_no_longer_held_are_dropped_and_numbers_kept(store: AnswerStore) -> None:
    store.hold([{"exchange": np.array([0, 7, 7, 1])}])
    assert list(store.batches) == [0, 7]
    assert store.add(batch(8, 3)) == 8
    store.hold([{"exchange": np.array([10, -1, -1, -1])}])
    assert list(store.batches) == [0, 7, 8] and store.held[0]["exchange"].tolist() == [10, 7, 7, 1]
    assert numbers_in(stacked_answers(store, 10, 1, 7)) == [10, 1, 7]
    store.hold([{"exchange": np.array([-1, -1, -1, 9])}])
    assert list(store.batches) == [7, 8]
    assert numbers_in(stacked_answers(store, 9, 8)) == [9, 8]


def test_received_returns_the_answer_with_a_number(store: AnswerStore) -> None:
    for number in range(8):
        answer = received(store.batches, number)
        assert answer.tensors["mean"].tolist() == [number] * 3 and float(answer.count) == 10 * number
        assert bool(answer.fresh)


def test_vmap_passes_each_learner_its_own_answer(store: AnswerStore) -> None:
    """Both for stacked and for shared answers."""

    def sum_of(parts: AnswerParts) -> Tensor:
        answer = one_received({"exchange": parts})["exchange"]
        return answer.tensors["mean"].sum() + answer.count + 100 * answer.fresh

    for numbers in ((4, -1, 4), (2, 7, 5)):
        stacked = stacked_answers(store, *numbers)
        sums = vmap(sum_of, in_dims=(stacked.dims,))(stacked.parts)
        held = [n if n >= 0 else 4 for n in numbers]
        assert sums.tolist() == [13 * h + 100 * (n >= 0) for h, n in zip(held, numbers, strict=True)]


def test_copy_writes_new_values_in_place(store: AnswerStore) -> None:
    place = stacked_answers(store, 0, 1, 2).clone()
    mean, count, fresh = place.tensors["mean"], place.count, place.fresh
    place.copy_(stacked_answers(store, 6, -1, 3))
    assert place.tensors["mean"] is mean and place.count is count and place.fresh is fresh
    assert [numbers_in(place)[i] for i in (0, 2)] == [6, 3] and place.fresh.tolist() == [True, False, True]
    assert store.batches[0].tensors["mean"][:, 0].tolist() == [0, 1], "the store's own are as they were"
