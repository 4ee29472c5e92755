"""The running mean of observations seen, and a fraction of the dimensions, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from consilience.errors import ConfigurationError
from consilience.exchanges import Observations, Prototypes, Received, SeenObservations, View
from consilience.task import Task


def view(features: torch.Tensor, targets: torch.Tensor) -> View:
    task = Task(inputs=(2,), classes=2, width=2)
    nothing: dict[str, torch.Tensor] = {}
    logits = features @ torch.eye(2)
    ones = torch.ones(len(features))
    return View(task, nothing, nothing, features, features, logits, targets, ones, lambda x: x, torch.tensor(2.0))


def received(entries: list[list[list[float]]], counts: list[list[int]]) -> Received:
    return Received({"mean": torch.tensor(entries)}, torch.tensor(counts), torch.tensor(True))


VIEW = view(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))


def test_observations_are_averaged_by_class_and_older_ones_fade() -> None:
    exchange = SeenObservations(memory=0.5, down=2)
    state = exchange.init_state(VIEW)
    assert state["seen"].tolist() == [0, 0]
    first = received([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [9.0, 9.0]]], [[4, 4], [4, 0]])
    state = exchange.receive(state, VIEW, first).state
    assert state["mean"].tolist() == [[2.0, 0.0], [0.0, 2.0]] and state["seen"].tolist() == [2, 1]
    second = received([[[5.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]], [[4, 0], [0, 0]])
    state = exchange.receive(state, VIEW, second).state
    # Two seen before count half: (1 x 2 + 5) / 2. Of class 1 nothing new has come.
    assert state["mean"].tolist() == [[3.5, 0.5], [0.0, 2.0]] and state["seen"].tolist() == [2.0, 0.5]


def test_the_penalty_is_both_losses_weighted() -> None:
    exchange, seen = SeenObservations(contrast=2.0, kd=3.0), received([[[1.0, 0.0], [0.0, 1.0]]], [[4, 4]])
    state = {"mean": torch.tensor([[2.0, 0.0], [0.0, 1.0]]), "seen": torch.tensor([1.0, 1.0])}
    contrast = Observations().penalty({}, VIEW, seen)
    pull = (1.0 + 0 + 0 + 0) / 4  # the mean of squares over two samples and two dimensions
    assert exchange.penalty(state, VIEW, seen) == pytest.approx(float(2 * contrast + 3 * pull))


def test_a_class_never_seen_does_not_pull() -> None:
    exchange, seen = SeenObservations(contrast=0.0, kd=1.0), received([[[1.0, 0.0], [0.0, 1.0]]], [[4, 4]])
    state = {"mean": torch.tensor([[2.0, 0.0], [7.0, 7.0]]), "seen": torch.tensor([1.0, 0.0])}
    zero = replace(exchange, kd=0.0).penalty(state, VIEW, seen)
    assert zero == 0 and exchange.penalty(state, VIEW, seen) == pytest.approx(0.5)  # (1 + 0) / 2, the first sample's


def test_memory_above_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"memory is 2; it must be a number from 0 to 1"):
        SeenObservations(memory=2)


# --- a fraction of the dimensions


def test_only_the_first_dimensions_are_uploaded_and_pulled() -> None:
    half = Prototypes(dimensions=0.5, min_count=1, weight=1.0)
    assert half.channel(VIEW.task).tensors["mean"].shape == (2, 1)
    sent = half.contribute({}, VIEW, received([[[0.0]]], [[0]]))
    assert sent.tensors["mean"].tolist() == [[1.0], [0.0]]
    mean = Received({"mean": torch.tensor([[3.0], [0.0]])}, torch.tensor([1, 1]), torch.tensor(True))
    assert half.penalty({}, VIEW, mean) == pytest.approx((4 + 0) / 2)  # over two samples and one dimension


def test_the_other_dimensions_of_an_observation_count_as_zero() -> None:
    half, whole = Observations(dimensions=0.5), Observations()
    assert half.channel(VIEW.task).tensors["mean"].shape == (2, 1)
    short, full = received([[[1.0], [0.5]]], [[4, 4]]), received([[[1.0, 0.0], [0.5, 0.0]]], [[4, 4]])
    assert half.penalty({}, VIEW, short) == whole.penalty({}, VIEW, full)


@pytest.mark.parametrize("share", [0, 1.5, -1])
def test_a_wrong_share_of_dimensions_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="dimensions"):
        Prototypes(dimensions=share)
