"""Clusters: assignments, means and the pull by hand; empty clusters; a round of k-means over two learners."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from consilience import simulate
from consilience.errors import ConfigurationError
from consilience.exchanges import Clusters
from consilience.exchanges.base import BatchView, Received, View
from consilience.functional.clusters import first_clusters, mean_of_views, nearest_center
from consilience.methods import build_method
from consilience.peer.create_charter import TaskShape, create_charter
from consilience.task import Task

TASK = Task(classes=3, width=2)
DIAGONAL = math.sqrt(0.5)


def view(features: Tensor, positions: Tensor | None = None, valid: Tensor | None = None) -> View:
    """A learner's rows, without labels."""
    empty = torch.empty(0)
    rows = len(features)
    return View(
        task=TASK,
        parameters={},
        buffers={},
        inputs=empty,
        features=features,
        logits=torch.zeros(rows, 3),
        targets=torch.zeros(rows, dtype=torch.int64),
        valid=torch.ones(rows) if valid is None else valid,
        classify=lambda x: x,
        samples=torch.tensor(float(rows)),
        batch=BatchView() if positions is None else BatchView(positions),
    )


def answer(centers: list[list[float]], count: list[float]) -> Received:
    return Received({"mean": torch.tensor(centers)}, torch.tensor(count), torch.tensor(True))


RIGHT_UP_NOBODY = answer([[0.9, 0.0], [0.0, 1.0], [0.0, 0.0]], [5.0, 4.0, 0.0])


def test_nearest_center_leaves_out_those_without_samples() -> None:
    """(0.1, 0.1) is nearest to the empty center at zero, and then to (0, 0.5)."""
    centers, count = torch.tensor([[1.0, 0.0], [0.0, 0.5], [0.0, 0.0]]), torch.tensor([2.0, 3.0, 0.0])
    rows = torch.tensor([[0.1, 0.1], [0.9, 0.0]])
    assert nearest_center(rows, centers, count).tolist() == [1, 0]
    assert nearest_center(rows, centers, count + 1).tolist() == [2, 0]


def test_samples_far_from_each_other_are_in_different_first_clusters() -> None:
    """Also where all rows lie close together, far from zero: how far is measured from their mean."""
    around = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    for rows in (around, 100 + 1e-2 * around):
        found = first_clusters(rows.double(), torch.ones(4).double(), 12)
        assert len(set(found.tolist())) >= 3
    padded = torch.cat([around, torch.full((3, 2), 50.0)])
    valid = torch.tensor([1.0] * 4 + [0.0] * 3)
    assert first_clusters(padded, valid, 12)[:4].tolist() == first_clusters(around, torch.ones(4), 12).tolist()


def test_mean_of_views_is_the_same_for_all_views_of_a_sample() -> None:
    rows, positions = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 4.0]]), torch.tensor([7, 5, 7, 5])
    assert mean_of_views(rows, positions).tolist() == [[2.0, 0.0], [0.0, 3.0], [2.0, 0.0], [0.0, 3.0]]


def test_penalty_is_the_mean_squared_distance_of_unit_features_to_their_centers() -> None:
    """(3, 0) counts as (1, 0), 0.1 from its center; (0, 2) is on its center; the diagonal is nearest to (0.9, 0)."""
    features = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]], requires_grad=True)
    term = Clusters(clusters=3).penalty({}, view(features), RIGHT_UP_NOBODY)
    diagonal = (DIAGONAL - 0.9) ** 2 + DIAGONAL**2
    assert term.item() == pytest.approx((0.01 + 0 + diagonal) / 3, rel=1e-5)
    (gradient,) = torch.autograd.grad(term, features)
    assert gradient[2, 0] < 0 < gradient[2, 1], "a step against it leads to the center"


def test_views_of_a_sample_are_pulled_to_the_center_of_their_mean() -> None:
    """The second view alone would be nearest to (0, 1)."""
    features, positions = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([4, 4])
    together = Clusters(clusters=3).penalty({}, view(features, positions), RIGHT_UP_NOBODY)
    apart = Clusters(clusters=3).penalty({}, view(features), RIGHT_UP_NOBODY)
    assert float(together) == pytest.approx((0.01 + 0.3**2 + 0.8**2) / 2, rel=1e-5)
    assert float(apart) == pytest.approx((0.01 + 0.6**2 + 0.2**2) / 2, rel=1e-5)


def test_without_centers_there_is_no_pull() -> None:
    features = torch.randn(4, 2, requires_grad=True)
    term = Clusters(clusters=3).penalty({}, view(features), answer([[0.0, 0.0]] * 3, [0.0] * 3))
    (gradient,) = torch.autograd.grad(term, features)
    assert term.item() == 0 and (gradient == 0).all()


def test_means_of_clusters_leave_out_single_samples_and_padding() -> None:
    """Two samples at the right, one above, which stays private; the last row is padding."""
    features = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 5.0], [0.0, -1.0]])
    valid = torch.tensor([1.0, 1.0, 1.0, 0.0])
    found = Clusters(clusters=3).contribute({}, view(features, valid=valid), RIGHT_UP_NOBODY)
    assert found.weight.tolist() == [2.0, 0.0, 0.0]
    expected = torch.tensor([[(1 + DIAGONAL) / 2, DIAGONAL / 2], [0.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(found.tensors["mean"], expected)


def test_first_upload_has_clusters_of_its_own() -> None:
    features = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    found = Clusters(clusters=5).contribute({}, view(features), answer([[0.0, 0.0]] * 5, [0.0] * 5))
    assert found.weight.sum() >= 35 and (found.weight > 0).sum() >= 3
    assert (found.tensors["mean"].norm(dim=1) <= 1).all()


def test_it_works_under_vmap() -> None:
    exchange = Clusters(clusters=3)
    features = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(1))

    def both(rows: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        received = replace(RIGHT_UP_NOBODY, count=count)
        given = exchange.contribute({}, view(rows), received)
        return exchange.penalty({}, view(rows), received), given.tensors["mean"], given.weight

    counts = torch.tensor([[5.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 1.0, 0.0]])
    together = vmap(both)(features, counts)
    for i in range(4):
        for one, stacked in zip(both(features[i], counts[i]), together, strict=True):
            torch.testing.assert_close(stacked[i], one)


def test_features_do_not_collapse_beside_a_contrastive_loss() -> None:
    """After training, samples are in many clusters, and features are not all alike."""
    common: dict[str, Any] = {"train": 200, "test": 100, "learners": 2, "rounds": 4, "epochs": 2, "workers": 0}
    result = simulate(method="cluster-sharing:clusters=12", **common, seed=3)
    pulled = result.history["loss.clusters"]
    assert 0.01 < pulled[-1].mean() < pulled[0].mean(), "nearer to the centers, but not on them"
    assert result.summary()["accuracy"]["mean"] > 50


def test_settings_are_checked_and_a_relay_can_carry_it() -> None:
    with pytest.raises(ConfigurationError, match="clusters"):
        build_method("cluster-sharing", {"clusters": 0})
    charter, _ = create_charter("some", {"name": "cluster-sharing"}, TaskShape((64,), 10), ["mlp"])
    assert list(charter.channels) == ["clusters"] and charter.channels["clusters"].rows == (20,)
