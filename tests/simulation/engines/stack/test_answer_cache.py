"""Answers by number, laid side by side for a stack of learners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from consilience.channels import Answer
from consilience.simulation.engines.jobs import StoreAnswers
from consilience.simulation.engines.stack.answer_cache import AnswerCache, Stacked, received_of

CPU = torch.device("cpu")


def batch(first: int, answers: int) -> Answer:
    """Answers that say their own number: in every value, and tenfold in their count."""
    numbers = torch.arange(first, first + answers, dtype=torch.float64)
    return Answer({"mean": numbers[:, None].expand(-1, 3).clone()}, 10 * numbers)


@pytest.fixture
def bank() -> AnswerCache:
    """Numbers 0 and 1, 2 to 6, and 7."""
    full = AnswerCache(CPU)
    full.learn(StoreAnswers({0: batch(0, 2), 2: batch(2, 5)}))
    full.learn(StoreAnswers({7: batch(7, 1)}))
    return full


def of(bank: AnswerCache, *numbers: int) -> Stacked:
    return bank.of({"exchange": np.array(numbers)}, ["exchange"])["exchange"]


def told(stacked: Stacked) -> Any:
    """The numbers of the answers: one a learner, or the one they share."""
    assert torch.equal(stacked.count * 1.0, 10 * stacked.tensors["mean"][..., 0])
    return stacked.tensors["mean"][..., 0].tolist()


@pytest.mark.parametrize(
    "numbers",
    [(0, 1), (3, 3, 2, 6), (7, 0, 4, 0, 7, 1), (6, 7), (1, 2), (5, 1)],
    ids=["a whole batch", "one batch", "all batches", "two of three", "across a border", "not in order"],
)
def test_each_learner_has_the_answer_of_its_number(bank: AnswerCache, numbers: tuple[int, ...]) -> None:
    stacked = of(bank, *numbers)
    assert told(stacked) == list(numbers)
    assert not stacked.shared and stacked.dims == ({"mean": 0}, 0, 0)
    assert stacked.tensors["mean"].shape == (len(numbers), 3) and stacked.fresh.all()


@pytest.mark.parametrize("number", [0, 1, 4, 7])
def test_where_all_hold_the_same_it_is_there_once(bank: AnswerCache, number: int) -> None:
    stacked = of(bank, number, number, number)
    assert stacked.shared and stacked.dims == ({"mean": None}, None, 0)
    assert stacked.tensors["mean"].tolist() == [number] * 3 and float(stacked.count) == 10 * number
    assert stacked.fresh.tolist() == [True] * 3


def test_a_single_learner_shares_with_itself(bank: AnswerCache) -> None:
    assert of(bank, 5).shared and told(of(bank, 5)) == 5.0


def test_minus_one_is_nothing_fresh(bank: AnswerCache) -> None:
    some = of(bank, 3, -1, 0)
    assert some.fresh.tolist() == [True, False, True] and not some.shared
    assert [told(some)[i] for i in (0, 2)] == [3.0, 0.0]  # what the second has does not matter, but that it has a shape
    same = of(bank, -1, 4, 4)
    assert same.fresh.tolist() == [False, True, True] and same.shared and told(same) == 4.0


def test_exchanges_have_answers_of_their_own(bank: AnswerCache) -> None:
    bank.learn(StoreAnswers({8: Answer({"other": torch.ones(2, 4, 5)}, torch.ones(2, 4))}))
    held = {"a": np.array([1, 4]), "b": np.array([9, 8]), "c": np.array([0, 0])}
    found = bank.of(held, ["b", "a"])
    assert list(found) == ["b", "a"] and told(found["a"]) == [1, 4]
    assert found["b"].tensors["other"].shape == (2, 4, 5) and found["b"].count.shape == (2, 4)


def test_what_is_forgotten_is_gone_and_the_others_keep_their_numbers(bank: AnswerCache) -> None:
    bank.learn(StoreAnswers({8: batch(8, 3)}, forget=(2,)))
    assert list(bank.batches) == [0, 7, 8]
    assert told(of(bank, 10, 1, 7)) == [10, 1, 7]
    bank.learn(StoreAnswers({}, forget=(0, 99)))  # what it never had is no matter
    assert told(of(bank, 9, 8)) == [9, 8]


def test_under_vmap_each_learner_sees_its_own(bank: AnswerCache) -> None:
    """Whether answers lie along the first axis or once for all."""

    def sum_of(parts: tuple[dict[str, Tensor], Tensor, Tensor]) -> Tensor:
        received = received_of(parts)
        return received.tensors["mean"].sum() + received.count + 100 * received.fresh

    for numbers in ((4, -1, 4), (2, 7, 5)):
        stacked = of(bank, *numbers)
        sums = vmap(sum_of, in_dims=(stacked.dims,))(stacked.parts)
        held = [n if n >= 0 else 4 for n in numbers]
        assert sums.tolist() == [13 * h + 100 * (n >= 0) for h, n in zip(held, numbers, strict=True)]


def test_a_copy_stays_in_its_place_and_takes_new_values(bank: AnswerCache) -> None:
    place = of(bank, 0, 1, 2).clone()
    mean, count, fresh = place.tensors["mean"], place.count, place.fresh
    place.copy_(of(bank, 6, -1, 3))
    assert place.tensors["mean"] is mean and place.count is count and place.fresh is fresh
    assert [told(place)[i] for i in (0, 2)] == [6, 3] and place.fresh.tolist() == [True, False, True]
    assert bank.batches[0].tensors["mean"][:, 0].tolist() == [0, 1], "the bank's own are as they were"
