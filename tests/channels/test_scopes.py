"""Means, pools and moving means within a scope: whose uploads each reader gets, computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from consilience.channels import EntryPool, OwnMovingMean, Scope, StandingMean
from consilience.wire.encodings import BIT, FLOAT32
from consilience.wire.robustness import Robustness
from consilience.wire.schema import Mean, Pool, Tensor

ROWS = Mean("m", {"x": Tensor((2, 1))}, rows=(2,))
VALUES = np.array([[[1.0], [10.0]], [[2.0], [20.0]], [[4.0], [40.0]]], dtype=np.float32)  # (members, rows, width)
WEIGHTS = np.array([[1.0, 0.0], [3.0, 2.0], [4.0, 2.0]])  # nobody but 1 and 2 has row 1


@pytest.fixture(params=["numpy", "torch"])
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def array(values: Any, library: str) -> Any:
    return torch.as_tensor(values) if library == "torch" else np.asarray(values)


def standing(library: str, schema: Mean = ROWS) -> StandingMean:
    mean = StandingMean(schema, 3, array(np.zeros(1, dtype=np.float32), library))
    mean.upload([0, 1, 2], {"x": array(VALUES, library)}, array(WEIGHTS, library))
    return mean


def test_a_mean_weighs_members_by_the_matrix_and_by_rows(library: str) -> None:
    matrix = np.array([[1.0, 1.0, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]])
    answer = standing(library).answer_within(matrix)
    # Reader 0: (1 x 1 + 3 x 2) / 4, and row 1 of member 1 alone. Reader 1: (1.5 x 2 + 4 x 4) / 5.5.
    assert answer.tensors["x"][:, :, 0].tolist() == [
        [1.75, 20.0],
        pytest.approx([19 / 5.5, (1 * 20 + 2 * 40) / 3]),
        [0, 0],
    ]
    assert answer.count.tolist() == [[4.0, 2.0], [7.0, 4.0], [0.0, 0.0]]


def test_a_matrix_of_ones_is_the_mean_of_everybody(library: str) -> None:
    mean = standing(library)
    everybody, (one, *_) = mean.answer(), mean.answer_within(np.ones((3, 3)))
    assert np.allclose(np.asarray(one.tensors["x"]), np.asarray(everybody.tensors["x"]))
    assert one.count.tolist() == everybody.count.tolist()


def test_weights_are_capped_in_a_scope_too(library: str) -> None:
    capped = Mean("m", ROWS.tensors, rows=(2,), robustness=Robustness(weight_cap=1))
    answer = standing(library, capped).answer_within(np.array([[0.0, 1.0, 1.0]]))
    assert answer.tensors["x"][0, :, 0].tolist() == [3.0, 30.0]


# --- moving means


def moving(library: str, tensor: Tensor | None = None) -> OwnMovingMean:
    start = {"w": array(np.array([10.0], dtype=np.float32), library)}
    return OwnMovingMean(Mean("w", {"w": tensor or Tensor((1,))}, moving=True), 3, start)


def change(mean: OwnMovingMean, library: str, changes: dict[int, float], weights: list[float]) -> None:
    values = array(np.array([[each] for each in changes.values()], dtype=np.float32), library)
    mean.upload(list(changes), {"w": values}, array(np.array(weights), library))


def test_partners_values_are_averaged_by_their_weights(library: str) -> None:
    mean = moving(library)
    change(mean, library, {0: 2.0, 1: -4.0}, [1.0, 3.0])
    uses = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]], dtype=bool)
    assert mean.aggregate(Scope(uses.astype(float), uses))
    # Learner 0: 10 + (2 x 1 - 4 x 3) / 4. Learner 2 uses its own only, and has uploaded nothing.
    assert mean.answer([0, 1, 2]).tensors["w"].tolist() == [[7.5], [6.0], [10.0]]
    assert mean.version == 1 and not mean.aggregate(None)


def test_without_a_scope_all_get_the_mean_of_everybody(library: str) -> None:
    mean = moving(library)
    change(mean, library, {0: 2.0, 2: 6.0}, [1.0, 1.0])
    assert mean.aggregate(None)
    assert mean.answer([1, 2]).tensors["w"].tolist() == [[14.0], [14.0]]


def test_gossip_uses_the_matrix_as_it_is_and_keeps_the_mean_of_all(library: str) -> None:
    mean = moving(library)
    change(mean, library, {0: 3.0, 1: 0.0, 2: -3.0}, [1.0, 5.0, 7.0])
    line = np.array([[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])
    assert mean.aggregate(Scope(line, line > 0, gossip=True))
    found = mean.answer([0, 1, 2]).tensors["w"]
    assert found[:, 0].tolist() == pytest.approx([12.0, 10.0, 8.0])
    state = mean.state()
    again = moving(library)
    again.load({k: array(v, library) if isinstance(v, np.ndarray) and k != "version" else v for k, v in state.items()})
    assert again.version == 1 and again.answer([0]).tensors["w"].tolist() == found[:1].tolist()


def test_moves_at_one_bit_keep_a_residual_of_every_member(library: str) -> None:
    mean = moving(library, Tensor((2,), FLOAT32, BIT))
    mean = OwnMovingMean(mean.channel, 2, {"w": array(np.zeros(2, dtype=np.float32), library)})
    change_of_both = array(np.array([[3.0, 1.0], [-1.0, -1.0]], dtype=np.float32), library)
    mean.upload([0, 1], {"w": change_of_both}, array(np.ones(2), library))
    apart = np.eye(2)
    assert mean.aggregate(Scope(apart, apart > 0))
    assert mean.answer([0, 1]).tensors["w"].tolist() == [[2.0, 2.0], [-1.0, -1.0]]
    assert mean.residuals["w"].tolist() == [[1.0, -1.0], [0.0, 0.0]]


# --- pools


def pool(library: str, **more: Any) -> EntryPool:
    schema = Pool("p", {"x": Tensor((2, 1))}, rows=(2,), **more)
    found = EntryPool(schema, 3, array(np.zeros(1, dtype=np.float32), library))
    found.upload([0, 1, 2], {"x": array(VALUES[:, None], library)}, array(np.maximum(WEIGHTS, 0)[:, None], library))
    return found


def test_a_reader_draws_only_from_those_it_may(library: str) -> None:
    allowed = np.array([[True, False, True], [False, True, False]])
    answer = pool(library, draw=2).answer([0, 1], 5, 1, allowed=allowed)
    assert sorted(answer.tensors["x"][0, :, 0, 0].tolist()) == [1.0, 4.0]
    assert answer.tensors["x"][1, :, 0, 0].tolist() == [2.0, 2.0]


def test_where_all_are_allowed_the_same_entries_are_drawn_as_without_a_scope(library: str) -> None:
    for more in ({}, {"by": "row"}, {"include_self": False}):
        found = pool(library, draw=2, **more)
        usual = found.answer([0, 1, 2], 5, 1)
        within = found.answer([0, 1, 2], 5, 1, allowed=np.ones((3, 3), dtype=bool))
        assert within.tensors["x"].tolist() == usual.tensors["x"].tolist()


def test_relevant_entries_are_the_nearest_of_others_over_the_rows_both_have(library: str) -> None:
    found = pool(library)
    answer = found.answer([0, 1, 2], 5, 1, nearest=True)
    # 0 shares row 0 with both: |1 - 2| < |1 - 4|. 1: to 0 the mean is 1, to 2 it is (4 + 400) / 2. 2: 9 against 202.
    assert answer.tensors["x"][:, 0, 0, 0].tolist() == [2.0, 1.0, 1.0]
    within = found.answer([1], 5, 1, nearest=True, allowed=np.array([[False, True, True]]))
    assert within.tensors["x"][0, 0, :, 0].tolist() == [4.0, 40.0]
    nobody = found.answer([1], 5, 1, nearest=True, allowed=np.array([[False, True, False]]))
    assert nobody.count.tolist() == [[[0.0, 0.0]]]


def test_useful_entries_are_those_of_others_with_the_smallest_losses(library: str) -> None:
    losses = np.array([[0.0, 3.0, 2.0], [5.0, 0.0, 9.0]])
    answer = pool(library).answer([0, 1], 5, 1, losses=losses)  # one's own, with a loss of 0, does not count
    assert answer.tensors["x"][:, 0, 0, 0].tolist() == [4.0, 1.0]
    within = pool(library).answer([0], 5, 1, losses=losses[:1], allowed=np.array([[True, True, False]]))
    assert within.tensors["x"][:, 0, 0, 0].tolist() == [2.0]


def test_relevant_rows_are_chosen_one_by_one(library: str) -> None:
    answer = pool(library, by="row").answer([2], 5, 1, nearest=True)
    assert answer.tensors["x"][0, 0, :, 0].tolist() == [2.0, 20.0]
