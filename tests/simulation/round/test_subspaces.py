"""Feature dimensions that are others in every round: which, what counts, what travels, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from consilience import simulate
from consilience.errors import ConfigurationError
from consilience.exchanges import Observations, Prototypes, Received
from consilience.exchanges.dimensions import SHARED
from consilience.simulation.federation import Federation
from consilience.simulation.result import Result
from consilience.simulation.round.subspaces import random_dimensions, renewed_dimensions, variance_between
from consilience.simulation.setup.subspaces import SubspacePlan
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, INT8
from tests.exchanges.test_seen_observations import VIEW

pytestmark = pytest.mark.usefixtures("one_thread")


def run(method: str, **settings: Any) -> Result:
    usual = {"data": "digits", "train": 120, "test": 60, "learners": 4, "rounds": 3, "workers": 0}
    return simulate(**{**usual, "method": method, **settings})


# --- which dimensions


def test_random_dimensions_depend_on_seed_and_round_alone() -> None:
    found = [random_dimensions(20, 5, seed, round_) for seed in range(2) for round_ in range(20)]
    assert all(each.sum() == 5 for each in found)
    assert len({each.tobytes() for each in found}) == len(found)
    assert np.array_equal(found[3], random_dimensions(20, 5, 0, 3))
    assert np.any(found[:20], axis=0).all()  # after some rounds every dimension was shared


def test_the_half_with_the_largest_variance_is_kept() -> None:
    shared, variance = np.array([True] * 4 + [False] * 4), np.array([0.1, 3.0, 0.2, 2.0, 9, 9, 9, 9])  # 9: unknown
    for round_ in range(20):
        found = renewed_dimensions(shared, variance, 0, round_)
        assert found[[1, 3]].all() and found.sum() == 4
    assert len({renewed_dimensions(shared, variance, 0, round_).tobytes() for round_ in range(20)}) > 5


def test_variance_is_between_the_means_of_known_classes() -> None:
    means = np.array([[1.0, 5.0], [3.0, 5.0], [100.0, 0.0]])
    assert variance_between(means, np.array([2, 7, 0])).tolist() == [1.0, 0.0]
    assert variance_between(means, np.zeros(3)).tolist() == [0.0, 0.0]


# --- what counts


def federation() -> Federation:
    """Two learners with one class and three dimensions, of which two are shared."""
    tensor = schema.Tensor((1, 3), FLOAT32, FLOAT32)
    channels: dict[str, schema.Channel] = {
        "prototypes": schema.Mean("prototypes", {"mean": tensor}, (1,)),
        "observations": schema.Pool("observations", {"mean": tensor}, rows=(1,)),
    }
    made = Federation(0, channels, 2, {}, torch.zeros(1, dtype=torch.float64))
    made.use_subspace(SubspacePlan("random", 3, 2, ("prototypes", "observations"), "prototypes"))
    return made


def put(one: Federation, who: int, values: list[float], now: int) -> None:
    mean, weight = torch.tensor([[values]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    for name, sent, count in (("prototypes", mean, weight), ("observations", mean[:, None], weight[:, None])):
        tensors = one.only_shared(name, {"mean": sent})
        one.upload(name, np.array([who]), tensors, count, np.zeros(1, dtype=np.int64), now)


def test_a_mean_has_only_uploads_and_dimensions_of_its_round() -> None:
    one = federation()
    one.share_only(np.array([True, True, False]), 0)
    put(one, 0, [2.0, 4.0, 6.0], 0)
    put(one, 1, [4.0, 8.0, 6.0], 0)
    answer, _ = one.answers("prototypes", np.array([0]), 0)
    assert answer.tensors["mean"].tolist() == [[[3.0, 6.0, 0.0]]] and answer.tensors[SHARED].tolist() == [[1, 1, 0]]
    one.share_only(np.array([False, True, True]), 1)
    put(one, 1, [1.0, 2.0, 3.0], 1)  # learner 0 is absent: what it uploaded has other dimensions
    answer, _ = one.answers("prototypes", np.array([0]), 1)
    assert answer.tensors["mean"].tolist() == [[[0.0, 2.0, 3.0]]] and answer.count.tolist() == [[1.0]]
    entries, _ = one.answers("observations", np.array([0, 1]), 1)
    assert entries.tensors["mean"][:, 0, 0].tolist() == [[0.0, 2.0, 3.0]] * 2  # the only one


def test_penalties_are_over_the_shared_dimensions() -> None:
    """With the first dimension shared they are those of a subspace that is always the first."""
    settings: dict[str, Any] = {"dimensions": 0.5, "min_count": 1, "weight": 1.0}
    for scale in ("absolute", "relative"):
        first = Prototypes(**settings, scale=scale)
        moving = Prototypes(**settings, scale=scale, subspace="random")
        count, fresh = torch.tensor([1, 1]), torch.tensor(True)
        narrow = Received({"mean": torch.tensor([[3.0], [0.5]])}, count, fresh)
        wide = Received({"mean": torch.tensor([[3.0, 0.0], [0.5, 0.0]]), SHARED: torch.tensor([1, 0])}, count, fresh)
        assert moving.penalty({}, VIEW, wide) == pytest.approx(first.penalty({}, VIEW, narrow).item())
        assert moving.contribute({}, VIEW, wide).tensors["mean"].shape == (2, 2)


# --- what travels


@pytest.mark.parametrize("subspace", ["random", "top-variance"])
@pytest.mark.parametrize("method", ["fedproto", "representation-sharing"])
def test_bytes_are_those_of_the_shared_dimensions(method: str, subspace: str) -> None:
    first, moving = (run(f"{method}:dimensions=0.25:subspace={each}") for each in ("first", subspace))
    for key in ("bytes.up", "bytes.down", "values.up", "values.down"):
        assert np.array_equal(first.history[key], moving.history[key]), key
    assert not np.array_equal(first.history["loss.prototypes"], moving.history["loss.prototypes"])


def test_who_lacks_the_last_means_gets_a_bit_per_dimension() -> None:
    kinds = ("first", "random", "top-variance")
    settings: dict[str, Any] = {"participation": 0.5, "rounds": 6}
    first, hashed, top = (run(f"fedproto:dimensions=0.25:subspace={kind}", **settings) for kind in kinds)
    assert np.array_equal(first.history["bytes.down"], hashed.history["bytes.down"])
    more = top.history["bytes.down"] - first.history["bytes.down"]
    there = np.concatenate([np.ones_like(top.history["participated"][:1]), top.history["participated"]])[-7:] > 0
    back = there[1:] & ~there[:-1]
    assert back.any() and np.array_equal(more[-6:], np.where(back, 4.0, 0.0))  # 32 dimensions


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "fedproto:subspace=random"}, "all dimensions are shared; set dimensions"),
        ({"method": "fedproto:dimensions=0.5:subspace=last"}, "last"),
        ({"method": "fedproto:dimensions=0.5:subspace=random:encoding=int8"}, "encoding is 'int8'"),
        ({"method": "representation-sharing:dimensions=0.5:subspace=random:means=seen"}, "means='global'"),
        ({"method": "fedproto:dimensions=0.5:subspace=top-variance", "topology": "ring"}, "use subspace='random'"),
        (
            {
                "method": "fedproto:dimensions=0.5:subspace=random",
                "groups": {"a": {"learners": 0, "method": {"subspace": "top-variance"}}},
            },
            "must all have the same subspace",
        ),
    ],
)
def test_a_subspace_that_does_not_fit_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match="subspace") as error:
        run(**settings)
    assert said in str(error.value)


def test_observations_refuse_a_scale_of_all_dimensions_too() -> None:
    with pytest.raises(ConfigurationError, match="int8"):
        Observations(dimensions=0.5, subspace="random", encoding=INT8)
