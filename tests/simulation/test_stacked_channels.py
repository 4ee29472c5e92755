"""Channels of many federations in one operation give the bits of each federation's channels alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from consilience.channels import EntryPool, StandingMean
from consilience.simulation import stacked_channels
from consilience.simulation.federation import Federation
from consilience.simulation.result import Result
from consilience.simulation.simulate import simulate
from consilience.simulation.stacked_channels import answer_stacked, upload_stacked
from consilience.wire import schema
from consilience.wire.encodings import BIT, INT8
from consilience.wire.robustness import Robustness

SIZE: dict[str, Any] = {"data": "digits", "train": 240, "test": 60, "model": "mlp", "learners": 4, "rounds": 3}
CASES: dict[str, dict[str, Any]] = {
    "prototypes": {"method": "fedproto"},
    "observations": {"method": "representation-sharing"},
    "default": {"method": "consilience"},
    "oneself": {"method": "self-distillation"},
    "participation": {"method": "representation-sharing", "participation": 0.5},
    "offline": {"method": "representation-sharing", "offline": 0.4},
    "robust": {"method": "fedproto", "aggregation": "trimmed(0.3)"},
    "capped": {"method": "fedproto", "weight_cap": 3},
}


def same(one: Result, other: Result, federations: slice = slice(None)) -> None:
    """Compare everything that is recorded but times."""
    for metric in (name for name in one.history if not name.startswith("seconds")):
        expected = one.history[metric]
        np.testing.assert_array_equal(other.history[metric][:, federations], expected, err_msg=metric)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", CASES)
def test_federations_at_once_equal_each_alone(case: str) -> None:
    many = simulate(**SIZE, **CASES[case], seeds=3, engine="loop")
    for f, seed in enumerate((0, 1, 2)):
        same(simulate(**SIZE, **CASES[case], seed=seed, engine="loop"), many, slice(f, f + 1))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", CASES)
def test_stacked_operations_equal_the_loop_over_federations(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = simulate(**SIZE, **CASES[case], seeds=3, engine="stack")
    monkeypatch.setattr(stacked_channels, "_WORTH", 99)
    same(simulate(**SIZE, **CASES[case], seeds=3, engine="stack"), stacked)


# -- hand-made uploads -------------------------------------------------------------------------------------------------


def tensor(**settings: Any) -> schema.Tensor:
    return schema.Tensor((5, 3), **settings)


def federations(channel: schema.Channel, count: int = 4, members: int = 6) -> list[Federation]:
    return [Federation(seed, {"means": channel}, members, {}, torch.zeros(1)) for seed in range(count)]


def fractions(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def mean(**settings: Any) -> schema.Mean:
    return schema.Mean("means", {"mean": tensor()}, rows=(5,), **settings)


def upload_twice(some: list[Federation], alone: list[Federation], entries: tuple[int, ...] = ()) -> None:
    """Fractions, from members that differ between federations, into both; the second time from fewer members."""
    for now, each in enumerate((4, 3, 1)):
        who = np.stack([np.sort(np.random.default_rng([now, f]).permutation(6)[:each]) for f in range(len(some))])
        federation, member = np.repeat(np.arange(len(some)), each), who.reshape(-1)
        rows = len(federation)
        values, weights = fractions(rows, *entries, 5, 3), fractions(rows, *entries, 5).double() * (now != 2)
        place = np.arange(rows)[::-1].copy()
        left = upload_stacked(some, "means", (federation, member, place), {"mean": values}, weights, now)
        assert not left
        for f, each_alone in enumerate(alone):
            own = place[federation == f]
            each_alone.upload("means", who[f], {"mean": values[own]}, weights[own], np.zeros(each), now)


def states_equal(some: list[Federation], alone: list[Federation]) -> None:
    for one, other in zip(some, alone, strict=True):
        mine, theirs = one.state()["means"], other.state()["means"]
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            np.testing.assert_array_equal(np.asarray(mine[key]), np.asarray(value), err_msg=key)


def test_means_of_fractions_are_those_of_each_channel() -> None:
    for channel in (mean(), mean(scope="oneself")):
        some, alone = federations(channel), federations(channel)
        upload_twice(some, alone)
        states_equal(some, alone)
        readers = {f: np.array([1, 4]) for f in range(4)}
        ((answer, place),), left = answer_stacked(some, "means", readers, 1, 0)
        assert not left
        for f, each in enumerate(alone):
            expected, which = each.answers("means", readers[f], 1, 0)
            mine = answer.tensors["mean"][place[f]]
            assert torch.equal(mine, expected.tensors["mean"][which])
            assert torch.equal(answer.count[place[f]], expected.count[which])


@pytest.mark.parametrize("by", ["member", "row"])
@pytest.mark.parametrize("down", [None, INT8])
def test_pools_draw_what_each_channel_draws(by: Any, down: Any) -> None:
    tensors = {"mean": tensor() if down is None else tensor(down=down)}
    channel = schema.Pool("means", tensors, rows=(5,), keep=2, draw=3, by=by)
    some, alone = federations(channel), federations(channel)
    upload_twice(some, alone, entries=(2,))
    states_equal(some, alone)
    readers = {f: np.array([0, 2, 5]) for f in range(4)}
    ((answer, place),), left = answer_stacked(some, "means", readers, 7, 0)
    assert not left
    for f, each in enumerate(alone):
        expected, which = each.answers("means", readers[f], 7, 0)
        assert torch.equal(answer.tensors["mean"][place[f]], expected.tensors["mean"][which])
        assert torch.equal(answer.count[place[f]], expected.count[which])


@pytest.mark.parametrize(
    "channel",
    [
        mean(robustness=Robustness("median")),
        mean(robustness=Robustness(clip_norm=1.0)),
        mean(robustness=Robustness(weight_cap=1.0)),
        schema.Mean("means", {"mean": tensor(down=BIT)}, rows=(5,)),
    ],
)
def test_what_one_operation_does_not_serve_is_left(channel: schema.Mean) -> None:
    some = federations(channel)
    rows = np.arange(4), np.zeros(4, dtype=np.int64), np.arange(4)
    assert upload_stacked(some, "means", rows, {"mean": fractions(4, 5, 3)}, fractions(4, 5), 0) == [0, 1, 2, 3]
    found, left = answer_stacked(some, "means", {f: np.array([0]) for f in range(4)}, 0, 0)
    assert not found and left == [0, 1, 2, 3]
    channels = [each.channels["means"] for each in some]
    assert all(isinstance(each, StandingMean | EntryPool) for each in channels)


def test_one_federation_is_left() -> None:
    some = federations(mean(), count=1)
    rows = np.zeros(2, dtype=np.int64), np.array([0, 1]), np.array([0, 1])
    assert upload_stacked(some, "means", rows, {"mean": fractions(2, 5, 3)}, fractions(2, 5), 0) == [0]
