"""The answers that learners hold: by number, for one learner and stacked for many."""

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
    """Answers that say their own number: in every value, and tenfold in their count."""
    numbers = torch.arange(first, first + answers, dtype=torch.float64)
    return Answer({"mean": numbers[:, None].expand(-1, 3).clone()}, 10 * numbers)


@pytest.fixture
def store() -> AnswerStore:
    """Numbers 0 and 1, 2 to 6, and 7."""
    full = AnswerStore([["exchange"]], [4])
    assert [full.add(batch(first, answers)) for first, answers in ((0, 2), (2, 5), (7, 1))] == [0, 2, 7]
    return full


def of(store: AnswerStore, *numbers: int) -> StackedAnswers:
    return stack_answers(store.batches, {"exchange": np.array(numbers)}, ["exchange"], CPU)["exchange"]


def numbers_in(stacked: StackedAnswers) -> Any:
    """The numbers of the answers: one a learner, or the one they share."""
    assert torch.equal(stacked.count * 1.0, 10 * stacked.tensors["mean"][..., 0])
    return stacked.tensors["mean"][..., 0].tolist()


@pytest.mark.parametrize(
    "numbers",
    [(0, 1), (3, 3, 2, 6), (7, 0, 4, 0, 7, 1), (6, 7), (1, 2), (5, 1)],
    ids=["a whole batch", "one batch", "all batches", "two of three", "across a border", "not in order"],
)
def test_each_learner_has_the_answer_of_its_number(store: AnswerStore, numbers: tuple[int, ...]) -> None:
    stacked = of(store, *numbers)
    assert numbers_in(stacked) == list(numbers)
    assert not stacked.shared and stacked.dims == ({"mean": 0}, 0, 0)
    assert stacked.tensors["mean"].shape == (len(numbers), 3) and stacked.fresh.all()


@pytest.mark.parametrize("number", [0, 1, 4, 7])
def test_where_all_hold_the_same_it_is_there_once(store: AnswerStore, number: int) -> None:
    stacked = of(store, number, number, number)
    assert stacked.shared and stacked.dims == ({"mean": None}, None, 0)
    assert stacked.tensors["mean"].tolist() == [number] * 3 and float(stacked.count) == 10 * number
    assert stacked.fresh.tolist() == [True] * 3


def test_a_single_learner_shares_with_itself(store: AnswerStore) -> None:
    assert of(store, 5).shared and numbers_in(of(store, 5)) == 5.0


def test_minus_one_is_nothing_fresh(store: AnswerStore) -> None:
    some = of(store, 3, -1, 0)
    assert some.fresh.tolist() == [True, False, True] and not some.shared
    assert [numbers_in(some)[i] for i in (0, 2)] == [
        3.0,
        0.0,
    ]  # the second's value does not matter
    same = of(store, -1, 4, 4)
    assert same.fresh.tolist() == [False, True, True] and same.shared and numbers_in(same) == 4.0


def test_exchanges_have_answers_of_their_own(store: AnswerStore) -> None:
    store.add(Answer({"other": torch.ones(2, 4, 5)}, torch.ones(2, 4)))
    held = {"a": np.array([1, 4]), "b": np.array([9, 8]), "c": np.array([0, 0])}
    found = stack_answers(store.batches, held, ["b", "a"], CPU)
    assert list(found) == ["b", "a"] and numbers_in(found["a"]) == [1, 4]
    assert found["b"].tensors["other"].shape == (2, 4, 5) and found["b"].count.shape == (2, 4)


def test_what_is_no_longer_held_is_dropped_and_the_others_keep_their_numbers(store: AnswerStore) -> None:
    store.hold([{"exchange": np.array([0, 7, 7, 1])}])
    assert list(store.batches) == [0, 7]
    assert store.add(batch(8, 3)) == 8
    store.hold([{"exchange": np.array([10, -1, -1, -1])}])
    assert list(store.batches) == [0, 7, 8] and store.held[0]["exchange"].tolist() == [10, 7, 7, 1]
    assert numbers_in(of(store, 10, 1, 7)) == [10, 1, 7]
    store.hold([{"exchange": np.array([-1, -1, -1, 9])}])
    assert list(store.batches) == [7, 8]
    assert numbers_in(of(store, 9, 8)) == [9, 8]


def test_one_learner_s_answer_by_its_number(store: AnswerStore) -> None:
    for number in range(8):
        answer = received(store.batches, number)
        assert answer.tensors["mean"].tolist() == [number] * 3 and float(answer.count) == 10 * number
        assert bool(answer.fresh)


def test_under_vmap_each_learner_sees_its_own(store: AnswerStore) -> None:
    """Whether answers lie along the first axis or once for all."""

    def sum_of(parts: AnswerParts) -> Tensor:
        answer = one_received({"exchange": parts})["exchange"]
        return answer.tensors["mean"].sum() + answer.count + 100 * answer.fresh

    for numbers in ((4, -1, 4), (2, 7, 5)):
        stacked = of(store, *numbers)
        sums = vmap(sum_of, in_dims=(stacked.dims,))(stacked.parts)
        held = [n if n >= 0 else 4 for n in numbers]
        assert sums.tolist() == [13 * h + 100 * (n >= 0) for h, n in zip(held, numbers, strict=True)]


def test_a_copy_stays_in_its_place_and_takes_new_values(store: AnswerStore) -> None:
    place = of(store, 0, 1, 2).clone()
    mean, count, fresh = place.tensors["mean"], place.count, place.fresh
    place.copy_(of(store, 6, -1, 3))
    assert place.tensors["mean"] is mean and place.count is count and place.fresh is fresh
    assert [numbers_in(place)[i] for i in (0, 2)] == [6, 3] and place.fresh.tolist() == [True, False, True]
    assert store.batches[0].tensors["mean"][:, 0].tolist() == [0, 1], "the store's own are as they were"
