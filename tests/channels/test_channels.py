"""The state of channels at a relay: means and pools, computed by hand and by property, equal in NumPy and torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.channels import Answer, AnyChannel, EntryPool, MovingMean, StandingMean, build_channel
from consilience.errors import ChannelError
from consilience.simulation.federation import Federation
from consilience.wire import codec
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8, Encoding
from consilience.wire.robustness import Aggregation, Robustness
from consilience.wire.schema import Channel, Mean, Pool, Tensor

Make = Callable[[Any], Any]
"""Nested lists to an array of one of the libraries, in single precision."""


def numpy_array(values: Any) -> Any:
    return np.asarray(values, dtype=np.float32)


def torch_array(values: Any) -> Any:
    return torch.as_tensor(np.asarray(values, dtype=np.float32))


@pytest.fixture(params=[numpy_array, torch_array], ids=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as a checkpoint restores it."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else np.array(v) for k, v in state.items()}


def as_lists(answer: Answer) -> tuple[dict[str, Any], Any]:
    return {k: v.tolist() for k, v in answer.tensors.items()}, answer.count.tolist()


# --- standing mean


def standing(make: Make, shape: tuple[int, ...] = (2,), rows: tuple[int, ...] = (), members: int = 3) -> StandingMean:
    return StandingMean(Mean("means", {"x": Tensor(shape)}, rows=rows), members, make([0.0]))


def test_standing_mean_weights_members_by_a_scalar(make: Make) -> None:
    channel = standing(make)
    channel.upload([0, 2], {"x": make([[1.0, 2.0], [5.0, -6.0]])}, make([1.0, 3.0]))
    answer = channel.answer()
    assert as_lists(answer) == ({"x": [4.0, -4.0]}, 4.0)
    assert answer.tensors["x"].dtype == make([0.0]).dtype


def test_standing_mean_weights_every_row_by_its_count(make: Make) -> None:
    channel = standing(make, (3, 2), rows=(3,))
    mine, yours = [[1.0, 1.0], [2.0, 4.0], [0.0, 0.0]], [[3.0, 5.0], [0.0, 0.0], [0.0, 0.0]]
    channel.upload([0, 1], {"x": make([mine, yours])}, make([[1.0, 7.0, 0.0], [3.0, 0.0, 0.0]]))
    assert as_lists(channel.answer()) == ({"x": [[2.5, 4.0], [2.0, 4.0], [0.0, 0.0]]}, [4.0, 7.0, 0.0])


def test_standing_mean_is_zero_with_count_zero_before_any_upload(make: Make) -> None:
    assert as_lists(standing(make, (2, 1), rows=(2,)).answer()) == ({"x": [[0.0], [0.0]]}, [0.0, 0.0])
    assert as_lists(standing(make).answer()) == ({"x": [0.0, 0.0]}, 0.0)


def test_new_upload_replaces_the_old_one(make: Make) -> None:
    channel = standing(make)
    channel.upload([0], {"x": make([[100.0, 100.0]])}, make([50.0]))
    channel.upload([1], {"x": make([[1.0, 3.0]])}, make([2.0]))
    channel.upload([0], {"x": make([[4.0, 0.0]])}, make([1.0]))
    assert as_lists(channel.answer()) == ({"x": [2.0, 2.0]}, 3.0)


def test_expired_contributions_are_removed_and_their_members_returned(make: Make) -> None:
    channel = standing(make)
    for member, now in ((0, 1), (1, 4), (2, 2)):
        channel.upload([member], {"x": make([[10.0**member, 0.0]])}, make([1.0]), now=now)
    assert channel.expire(before=1) == []
    assert channel.expire(before=4) == [0, 2]
    assert as_lists(channel.answer()) == ({"x": [10.0, 0.0]}, 1.0)
    assert channel.expire(before=4) == []
    channel.upload([0], {"x": make([[30.0, 2.0]])}, make([1.0]), now=5)  # and may upload again
    assert as_lists(channel.answer()) == ({"x": [20.0, 1.0]}, 2.0)


def test_no_rounding_residue_remains_after_all_contributions_expire(make: Make) -> None:
    """0.1 + 0.2 + 0.3 - 0.1 - 0.2 - 0.3 is not 0: the residue must not be divided by itself."""
    channel = standing(make)
    for member, weight in enumerate((0.1, 0.2, 0.3)):
        channel.upload([member], {"x": make([[1.0, 7.0]])}, make([weight]), now=member)
    for before in (1, 2, 3):
        channel.expire(before)
    assert as_lists(channel.answer()) == ({"x": [0.0, 0.0]}, 0.0)


def test_own_contributions_are_those_of_the_member_alone(make: Make) -> None:
    channel = standing(make)
    channel.upload([0, 2], {"x": make([[1.0, 2.0], [5.0, 6.0]])}, make([1.0, 3.0]))
    two, one = channel.own_contributions([2, 1])
    assert as_lists(two) == ({"x": [5.0, 6.0]}, 3.0)
    assert as_lists(one) == ({"x": [0.0, 0.0]}, 0.0)


def test_earlier_answers_do_not_change(make: Make) -> None:
    """An offline member keeps its answer while others upload."""
    channel = standing(make)
    channel.upload([0], {"x": make([[1.0, 2.0]])}, make([1.0]))
    everybody, (own,) = channel.answer(), channel.own_contributions([0])
    channel.upload([0], {"x": make([[8.0, 9.0]])}, make([5.0]))
    assert as_lists(everybody) == as_lists(own) == ({"x": [1.0, 2.0]}, 1.0)


def test_running_sums_do_not_drift(make: Make) -> None:
    generator, members = np.random.default_rng(0), 50
    channel = standing(make, (4,), members=members)
    for _ in range(400):  # times 50 members: 20,000 replacements
        values, weights = generator.normal(size=(members, 4)) * 100, generator.integers(1, 1000, members)
        channel.upload(range(members), {"x": make(values)}, make(weights))
    exact = (numpy_array(values).astype(np.float64) * weights[:, None]).sum(0)
    np.testing.assert_allclose(np.asarray(channel.sums["x"]) / weights.sum(), exact / weights.sum(), atol=1e-9, rtol=0)
    assert float(channel.count) == weights.sum()


Put = tuple[int, list[float], list[int]]
FINITE = st.floats(-1e3, 1e3, width=32)
PUTS: st.SearchStrategy[list[Put]] = st.lists(
    st.tuples(
        st.integers(0, 3), st.lists(FINITE, min_size=2, max_size=2), st.lists(st.integers(0, 9), min_size=2, max_size=2)
    ),
    max_size=12,
)


@pytest.mark.parametrize("make", [numpy_array, torch_array], ids=["numpy", "torch"])
@settings(max_examples=60)
@given(puts=PUTS)
def test_standing_mean_equals_recomputation_from_scratch(make: Make, puts: list[Put]) -> None:
    channel = standing(make, (2, 1), rows=(2,), members=4)
    newest: dict[int, tuple[Any, Any]] = {}
    for member, values, counts in puts:
        channel.upload([member], {"x": make(values).reshape(1, 2, 1)}, make([counts]))
        newest[member] = numpy_array(values).astype(np.float64), np.asarray(counts, dtype=np.float64)
    answer = channel.answer()
    total = sum((c for _, c in newest.values()), np.zeros(2))
    summed = sum((v * c for v, c in newest.values()), np.zeros(2))
    mean = np.where(total > 0, summed / np.maximum(total, 1), 0)
    np.testing.assert_allclose(answer.tensors["x"].reshape(2), mean, rtol=1e-6, atol=1e-5)
    assert answer.count.tolist() == total.tolist()


@settings(max_examples=60)
@given(values=st.lists(FINITE, min_size=4, max_size=4), order=st.permutations(range(4)), cut=st.integers(0, 4))
def test_standing_mean_does_not_depend_on_upload_order(values: list[float], order: list[int], cut: int) -> None:
    one, other = standing(numpy_array, (1,), members=4), standing(numpy_array, (1,), members=4)
    one.upload(range(4), {"x": numpy_array(values)[:, None]}, numpy_array([1, 2, 3, 4]))
    for some in (order[:cut], order[cut:]):
        other.upload(some, {"x": numpy_array([values[m] for m in some])[:, None]}, numpy_array([m + 1 for m in some]))
    np.testing.assert_allclose(one.answer().tensors["x"], other.answer().tensors["x"], rtol=1e-6, atol=1e-9)


# --- moving mean


def moving(
    start: Any,
    down: Encoding = FLOAT32,
    members: int = 4,
    max_staleness: int = 8,
    quorum: int | None = None,
    aggregation: Aggregation = "mean",
) -> MovingMean:
    tensors = {"x": Tensor(tuple(start.shape), down=down)}
    robustness = Robustness(aggregation=aggregation)
    schema = Mean("changes", tensors, moving=True, max_staleness=max_staleness, quorum=quorum, robustness=robustness)
    return MovingMean(schema, members, {"x": start})


def test_common_values_move_by_the_mean_change(make: Make) -> None:
    channel = moving(make([1.0, 2.0]))
    assert channel.upload([0, 3], {"x": make([[1.0, 0.0], [3.0, 4.0]])}, make([1.0, 3.0]), [0, 0]) == []
    assert as_lists(channel.answer()) == ({"x": [1.0, 2.0]}, 0.0)  # nothing moves before the aggregation
    assert channel.aggregate()
    answer = channel.answer()
    assert (answer.tensors["x"].tolist(), answer.version, float(answer.count)) == ([3.5, 5.0], 1, 1.0)
    assert answer.tensors["x"].dtype == make([0.0]).dtype


def test_change_counts_in_one_aggregation_only(make: Make) -> None:
    channel = moving(make([0.0]))
    for _ in range(2):
        channel.upload([0], {"x": make([[1.0]])}, make([5.0]), [channel.version])
        assert channel.aggregate()
    channel.upload([1], {"x": make([[-4.0]])}, make([1.0]), [2])
    assert channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [-2.0]


def test_aggregation_without_weight_moves_nothing(make: Make) -> None:
    channel = moving(make([1.0]), BIT)
    assert not channel.aggregate()
    channel.upload([0], {"x": make([[9.0]])}, make([0.0]), [0])  # a member without samples has weight 0
    assert not channel.aggregate()
    assert (channel.answer().tensors["x"].tolist(), channel.version) == ([1.0], 0)
    channel.upload([0], {"x": make([[2.0]])}, make([1.0]), [0])  # and its contribution is gone
    assert channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [3.0]


def test_stale_contributions_have_less_weight(make: Make) -> None:
    channel = moving(make([0.0]), max_staleness=15)
    for _ in range(15):
        channel.upload([0], {"x": make([[0.0]])}, make([1.0]), [channel.version])
        channel.aggregate()
    # Fifteen versions behind counts 16 ** -0.75 = 1/8; the mean is divided by the whole weight, 2 + 2.
    assert channel.upload([1, 2], {"x": make([[6.0], [0.0]])}, make([2.0, 2.0]), [0, 15]) == []
    assert channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [0.375]


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_a_stale_change_alone_moves_the_common_values_less_far(make: Make, aggregation: Aggregation) -> None:
    channel = moving(make([0.0]), max_staleness=15, aggregation=aggregation)
    for _ in range(15):
        channel.upload([0], {"x": make([[0.0]])}, make([1.0]), [channel.version])
        channel.aggregate()
    channel.upload([1], {"x": make([[16.0]])}, make([5.0]), [0])
    assert channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [2.0]


def test_too_stale_upload_is_refused_and_may_be_repeated(make: Make) -> None:
    channel = moving(make([0.0]), max_staleness=1)
    for _ in range(2):
        channel.upload([0], {"x": make([[1.0]])}, make([1.0]), [channel.version])
        channel.aggregate()
    assert channel.upload([3, 1, 2], {"x": make([[50.0], [4.0], [70.0]])}, make([1.0, 1.0, 1.0]), [0, 2, 0]) == [3, 2]
    assert channel.upload([3], {"x": make([[6.0]])}, make([1.0]), [2]) == []
    assert channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [7.0]


def test_invalid_uploads_are_refused_as_a_whole(make: Make) -> None:
    channel = moving(make([0.0]))
    channel.expect([0, 1, 2])
    channel.upload([0], {"x": make([[1.0]])}, make([1.0]), [0])  # counted already
    channel.upload([2], {"x": make([[3.0]])}, make([1.0]), [0])  # still waiting
    two = {"x": make([[100.0], [100.0]])}
    for members, weights, versions, message in [
        ([1, 0], [1.0, 1.0], [0, 0], "member 0 has uploaded"),
        ([1, 2], [1.0, 1.0], [0, 0], "member 2 has uploaded"),
        ([1, 1], [1.0, 1.0], [0, 0], "each member may be given once"),
        ([1, 3], [1.0, 1.0], [0, 1], "version 1 is ahead of the channel's 0"),
        ([1, 4], [1.0, 1.0], [0, 0], "the channel has 0 to 3"),
        ([1, -1], [1.0, 1.0], [0, 0], "the channel has 0 to 3"),
        ([1, 3], [1.0, -1.0], [0, 0], "member 3 has weight -1.0"),
        ([1, 3], [1.0, math.nan], [0, 0], "member 3 has weight nan"),
        ([1, 3], [1.0, math.inf], [0, 0], "member 3 has weight inf"),
    ]:
        with pytest.raises(ChannelError, match=message):
            channel.upload(members, two, make(weights), versions)
    with pytest.raises(ChannelError, match="the channel has 0 to 3"):
        channel.expect([0, 4])
    assert channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [2.0]


def test_moving_mean_needs_a_start_value_for_every_tensor(make: Make) -> None:
    schema = Mean("changes", {"x": Tensor((1,)), "y": Tensor((1,))}, moving=True)
    for start in ({}, {"x": make([0.0])}, {k: make([0.0]) for k in "xyz"}):
        with pytest.raises(ChannelError, match=r"needs them for each of its tensors, \['x', 'y'\]"):
            MovingMean(schema, 2, start)


Change = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=100)
@given(
    values=st.lists(Change, min_size=5, max_size=5),
    weights=st.lists(st.integers(1, 1000), min_size=5, max_size=5),
    order=st.permutations(range(5)),
    cuts=st.lists(st.integers(0, 5), max_size=3),
    absent=st.sets(st.integers(0, 4), max_size=3),
    expecting=st.booleans(),
)
def test_any_upload_order_gives_the_same_bits(
    values: list[float], weights: list[int], order: list[int], cuts: list[int], absent: set[int], expecting: bool
) -> None:
    """Contributions are added in member order, in whatever order they arrive and whichever members are absent."""
    channel = moving(numpy_array([0.5]), members=5)
    if expecting:
        channel.expect(range(5))
    edges = [0, *sorted(cuts), 5]
    for start, stop in pairwise(edges):
        some = [m for m in order[start:stop] if m not in absent]
        changes = numpy_array([values[m] for m in some]).reshape(-1, 1)
        channel.upload(some, {"x": changes}, numpy_array([weights[m] for m in some]), [0] * len(some))
    channel.aggregate()
    total, weight = np.zeros(1), 0.0
    for member in sorted(set(range(5)) - absent):
        total = total + np.float64(np.float32(values[member])) * weights[member]
        weight += weights[member]
    assert channel.answer().tensors["x"].tobytes() == (np.float32(0.5) + np.float32(total / weight)).tobytes()


def test_unexpected_members_count_too(make: Make) -> None:
    channel = moving(make([0.0]))
    channel.expect([1, 2])
    channel.upload([3, 2], {"x": make([[3.0], [5.0]])}, make([1.0, 1.0]), [0, 0])
    channel.upload([1], {"x": make([[10.0]])}, make([1.0]), [0])
    assert channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [6.0]


def test_error_feedback_of_downloads(make: Make) -> None:
    """Two aggregations at one bit, by hand; the sign of 0 is +."""
    channel = moving(make([0.0, 0.0]), BIT)
    channel.upload([0, 1], {"x": make([[2.0, -4.0], [0.0, -2.0]])}, make([1.0, 1.0]), [0, 0])
    channel.aggregate()  # wanted (1, -3), sent (2, -2)
    assert channel.answer().tensors["x"].tolist() == [2.0, -2.0]
    assert channel.state()["errors.x"].tolist() == [-1.0, -1.0]
    channel.upload([0], {"x": make([[1.0, -5.0]])}, make([1.0]), [1])
    channel.aggregate()  # wanted (1 - 1, -5 - 1), sent (3, -3)
    assert channel.answer().tensors["x"].tolist() == [5.0, -5.0]
    assert channel.state()["errors.x"].tolist() == [-3.0, -3.0]


def test_error_feedback_of_downloads_at_four_bits(make: Make) -> None:
    """Two aggregations by hand: the scale is a seventh of the largest magnitude."""
    channel = moving(make([0.0, 0.0, 0.0]), INT4)
    channel.upload([0], {"x": make([[7.0, -2.25, 0.5]])}, make([1.0]), [0])
    channel.aggregate()  # a half is rounded to even
    assert channel.answer().tensors["x"].tolist() == [7.0, -2.0, 0.0]
    assert channel.state()["errors.x"].tolist() == [0.0, -0.25, 0.5]
    channel.upload([0], {"x": make([[0.0, -3.25, 1.0]])}, make([1.0]), [1])
    channel.aggregate()  # wanted (0, -3.5, 1.5), in steps of 0.5
    assert channel.answer().tensors["x"].tolist() == [7.0, -5.5, 1.5]
    assert channel.state()["errors.x"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("down", [FLOAT32, FLOAT16, INT8, INT4, BIT], ids=lambda e: e.name)
def test_common_values_equal_start_plus_replies_in_order(make: Make, down: Encoding) -> None:
    """A member that adds up the replies has bit for bit the relay's values."""
    generator = np.random.default_rng(3)
    start = make(generator.normal(size=(3, 4)))
    channel, mine, error = moving(start, down), start, start * 0
    for version in range(6):
        change = make(generator.normal(size=(1, 3, 4)))
        channel.upload([0], {"x": change}, make([1.0]), [version])
        channel.aggregate()
        wanted = change[0] + error if down.feedback else change[0]
        reply = down.quantize(wanted)
        mine, error = mine + reply, wanted - reply
        assert channel.answer().tensors["x"].tolist() == mine.tolist()


def test_quantized_replies_lose_nothing_over_many_rounds(make: Make) -> None:
    """With error feedback the sum of the quantized replies stays near the sum of the exact ones."""
    generator = np.random.default_rng(4)
    channel, meant = moving(make(np.zeros(16)), BIT), np.zeros(16)
    for version in range(200):
        change = generator.normal(size=16) + 0.5
        meant += numpy_array(change)
        channel.upload([0], {"x": make([change])}, make([1.0]), [version])
        channel.aggregate()
    sent, owed = (np.asarray(channel.state()[k], dtype=np.float64) for k in ("common.x", "errors.x"))
    np.testing.assert_allclose(sent + owed, meant, atol=1e-3)
    assert np.abs(owed).max() < 15  # the residual stays within a few steps and does not grow with the rounds


def test_channel_is_ready_when_all_expected_members_have_uploaded() -> None:
    channel, one = moving(numpy_array([0.0])), {"x": numpy_array([[1.0]])}
    assert not channel.ready
    channel.expect([0, 2])
    channel.upload([2], one, numpy_array([1.0]), [0])
    assert not channel.ready
    channel.upload([1], one, numpy_array([1.0]), [0])  # an unexpected member does not replace an expected one
    assert not channel.ready
    channel.upload([0], one, numpy_array([1.0]), [0])
    assert channel.ready
    channel.aggregate()
    assert not channel.ready


def test_channel_is_ready_when_the_quorum_has_uploaded() -> None:
    one = {"x": numpy_array([[1.0]])}
    channel = moving(numpy_array([0.0]), quorum=2)
    channel.expect([0, 1, 2])
    channel.upload([2], one, numpy_array([1.0]), [0])
    assert not channel.ready
    channel.upload([1], one, numpy_array([1.0]), [0])
    assert channel.ready


def test_quorum_is_required_when_no_members_are_expected() -> None:
    one = {"x": numpy_array([[1.0]])}
    channel = moving(numpy_array([0.0]), quorum=2)
    channel.upload([2], one, numpy_array([1.0]), [0])
    assert not channel.ready
    channel.upload([0], one, numpy_array([1.0]), [0])
    assert channel.ready


def test_all_expected_members_suffice_if_fewer_than_the_quorum() -> None:
    channel = moving(numpy_array([0.0]), quorum=3)
    channel.expect([1])
    channel.upload([1], {"x": numpy_array([[1.0]])}, numpy_array([1.0]), [0])
    assert channel.ready


def test_members_that_have_already_uploaded_can_be_expected() -> None:
    channel = moving(numpy_array([0.0]))
    channel.upload([1], {"x": numpy_array([[1.0]])}, numpy_array([1.0]), [0])
    channel.expect([1])
    assert channel.ready
    channel.expect([0, 1])
    assert not channel.ready
    channel.upload([0], {"x": numpy_array([[5.0]])}, numpy_array([1.0]), [0])
    assert channel.ready
    channel.aggregate()
    assert channel.answer().tensors["x"].tolist() == [3.0]


# --- pool


def pool(
    make: Make,
    members: int = 5,
    keep: int = 1,
    draw: int = 1,
    rows: tuple[int, ...] = (),
    by: Literal["member", "row"] = "member",
    include_self: bool = True,
    scope: Literal["everybody", "oneself"] = "everybody",
) -> EntryPool:
    schema = Pool("pool", {"x": Tensor((*rows, 1))}, rows, scope, keep, draw, by, include_self)
    return EntryPool(schema, members, make([0.0]))


def filled(make: Make, **settings: Any) -> EntryPool:
    """A pool where member m's entry is m + 1, so that no member has 0."""
    made = pool(make, **settings)
    everybody = range(made.members)
    made.upload(everybody, {"x": make([[[m + 1.0]] for m in everybody])}, make([[1.0]] * made.members))
    return made


def seen(answers: Iterable[Answer]) -> list[list[float]]:
    return [a.tensors["x"].reshape(-1).tolist() for a in answers]


def test_empty_pool_answers_zeros_with_count_zero(make: Make) -> None:
    for settings_ in ({}, {"include_self": False}, {"scope": "oneself"}):
        answers = pool(make, draw=2, **settings_).answer([0, 3], 0, 1)
        assert [as_lists(a) for a in answers] == [({"x": [[0.0], [0.0]]}, [0.0, 0.0])] * 2
    by_row = pool(make, draw=2, rows=(3,), by="row").answer([1], 0, 1)[0]
    assert as_lists(by_row) == ({"x": [[[0.0]] * 3] * 2}, [[0.0] * 3] * 2)


def test_pool_keeps_the_newest_entries_of_each_member(make: Make) -> None:
    channel = pool(make, members=2, keep=2, draw=2)
    for value in (1.0, 2.0, 3.0):
        channel.upload([1], {"x": make([[[value]]])}, make([[value * 10]]))
    answer = channel.answer([0], 0, 1)[0]
    assert sorted(zip(seen([answer])[0], answer.count.tolist(), strict=True)) == [(2.0, 20.0), (3.0, 30.0)]
    channel.upload([1], {"x": make([[[8.0], [9.0]]])}, make([[1.0, 1.0]]))  # both at once
    assert sorted(seen(channel.answer([0], 0, 1))[0]) == [8.0, 9.0]
    with pytest.raises(ChannelError, match="3 entries uploaded at once; at most 2"):
        channel.upload([1], {"x": make([[[1.0]] * 3])}, make([[1.0] * 3]))


def test_enough_entries_are_drawn_without_repetition(make: Make) -> None:
    channel = filled(make, draw=3)
    for round_ in range(40):
        for drawn in seen(channel.answer(range(5), 0, round_)):
            assert len(set(drawn)) == 3 and set(drawn) <= {1, 2, 3, 4, 5}


def test_too_few_entries_are_drawn_repeatedly(make: Make) -> None:
    channel = pool(make, draw=3)
    channel.upload([4], {"x": make([[[7.0]]])}, make([[2.0]]))
    answer = channel.answer([0], 0, 1)[0]
    assert as_lists(answer) == ({"x": [[7.0]] * 3}, [2.0] * 3)


def test_draw_depends_only_on_seed_round_turn_and_reader(make: Make) -> None:
    channel = filled(make, draw=2)
    once = seen(channel.answer(range(5), 7, 3))
    assert seen(channel.answer(range(5), 7, 3)) == once
    assert seen(channel.answer([3, 1], 7, 3)) == [once[3], once[1]]  # whichever other members ask
    others = [seen(channel.answer(range(5), *where)) for where in ((7, 4), (8, 3), (7, 3, 1))]
    assert all(other != once for other in others)


def test_draws_are_uniform_and_include_own_entries(make: Make) -> None:
    channel, rounds = filled(make), 400
    drawn = np.array([seen(channel.answer(range(5), 0, r)) for r in range(rounds)]).reshape(rounds, 5)
    for reader in range(5):
        found = Counter(drawn[:, reader].tolist())
        assert set(found) == {1.0, 2.0, 3.0, 4.0, 5.0}
        assert all(abs(n - 80) < 5 * math.sqrt(80 * 0.8) for n in found.values())
    apart = np.corrcoef(drawn.T) - np.eye(5)  # readers draw independently of each other
    assert np.abs(apart).max() < 0.25


def test_every_pair_is_drawn_equally_often(make: Make) -> None:
    channel, rounds = filled(make, draw=2), 400
    pairs = Counter(tuple(sorted(drawn)) for r in range(rounds) for drawn in seen(channel.answer(range(5), 1, r)))
    assert set(pairs) == set(combinations((1.0, 2.0, 3.0, 4.0, 5.0), 2))
    assert all(abs(n - 200) < 5 * math.sqrt(200 * 0.9) for n in pairs.values())


def test_own_entries_can_be_excluded(make: Make) -> None:
    channel = filled(make, members=3, include_self=False)
    drawn = np.array([seen(channel.answer(range(3), 0, r)) for r in range(100)]).reshape(100, 3)
    assert [set(drawn[:, reader].tolist()) for reader in range(3)] == [{2.0, 3.0}, {1.0, 3.0}, {1.0, 2.0}]
    both = filled(make, members=3, include_self=False, draw=2)
    assert [sorted(d) for d in seen(both.answer(range(3), 0, 1))] == [[2.0, 3.0], [1.0, 3.0], [1.0, 2.0]]


def test_single_member_excluding_itself_receives_zeros(make: Make) -> None:
    channel = pool(make, include_self=False)
    channel.upload([2], {"x": make([[[7.0]]])}, make([[3.0]]))
    two, zero = channel.answer([2, 0], 0, 1)
    assert as_lists(two) == ({"x": [[0.0]]}, [0.0])
    assert as_lists(zero) == ({"x": [[7.0]]}, [3.0])


def test_scope_oneself_draws_own_entries_only(make: Make) -> None:
    channel = filled(make, scope="oneself", draw=2)
    assert seen(channel.answer([3, 0], 0, 1)) == [[4.0, 4.0], [1.0, 1.0]]


def test_whole_entries_have_zeros_for_missing_classes(make: Make) -> None:
    channel = pool(make, members=2, rows=(2,))
    channel.upload([0], {"x": make([[[[5.0], [6.0]]]])}, make([[[4.0, 0.0]]]))  # the second class has no sample
    assert as_lists(channel.answer([1], 0, 1)[0]) == ({"x": [[[5.0], [0.0]]]}, [[4.0, 0.0]])


def test_rows_are_drawn_from_members_that_have_the_class(make: Make) -> None:
    """Class 0: members 0 and 1. Class 1: member 2. Class 2: none. Member 3 has uploaded nothing."""
    channel = pool(make, members=4, rows=(3,), by="row")
    entries = [[[10.0], [0.0], [0.0]], [[11.0], [0.0], [0.0]], [[0.0], [12.0], [0.0]]]
    counts = [[3.0, 0.0, 0.0], [5.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    channel.upload([0, 1, 2], {"x": make([[e] for e in entries])}, make([[c] for c in counts]))
    found: Counter[float] = Counter()
    for round_ in range(60):
        for answer in channel.answer([0, 3], 0, round_):
            values, count = answer.tensors["x"].reshape(3).tolist(), answer.count.reshape(3).tolist()
            assert values[1:] == [12.0, 0.0] and count[1:] == [2.0, 0.0]
            assert (values[0], count[0]) in {(10.0, 3.0), (11.0, 5.0)}
            found[values[0]] += 1
    assert min(found[10.0], found[11.0]) > 35  # of 120


def test_rows_are_drawn_independently_of_each_other(make: Make) -> None:
    channel = pool(make, members=3, rows=(2,), by="row")
    channel.upload(range(3), {"x": make([[[[m], [m]]] for m in range(3)])}, make([[[1.0, 1.0]]] * 3))
    drawn = [tuple(channel.answer([0], 0, r)[0].tensors["x"].reshape(2).tolist()) for r in range(90)]
    assert len(set(drawn)) == 9


def test_rows_are_drawn_without_repetition_and_without_own_entries(make: Make) -> None:
    channel = pool(make, members=3, draw=2, rows=(2,), by="row", include_self=False)
    channel.upload(range(3), {"x": make([[[[m + 1], [m + 1]]] for m in range(3)])}, make([[[1.0, 1.0]]] * 3))
    for round_ in range(10):
        drawn = channel.answer([1], 0, round_)[0].tensors["x"].reshape(2, 2)
        assert sorted(drawn[:, 0].tolist()) == sorted(drawn[:, 1].tolist()) == [1.0, 3.0]


# --- all kinds


def test_unknown_members_are_refused(make: Make) -> None:
    one = {"x": make([[1.0, 1.0]])}
    for wrong in (-1, 3):
        for refused in (
            lambda m=wrong: standing(make).upload([m], one, make([1.0])),
            lambda m=wrong: standing(make).own_contributions([m]),
            lambda m=wrong: moving(make([0.0, 0.0]), members=3).upload([m], one, make([1.0]), [0]),
            lambda m=wrong: moving(make([0.0, 0.0]), members=3).expect([m]),
            lambda m=wrong: pool(make, members=3).upload([m], {"x": make([[[1.0]]])}, make([[1.0]])),
            lambda m=wrong: pool(make, members=3).answer([m], 0, 1),
        ):
            with pytest.raises(ChannelError, match="the channel has 0 to 2"):
                refused()


def test_duplicate_member_in_one_upload_is_refused(make: Make) -> None:
    channel = standing(make)
    with pytest.raises(ChannelError, match=r"members \[0, 1, 1\] given"):
        channel.upload([1, 0, 1], {"x": make([[1.0, 1.0]] * 3)}, make([1.0] * 3))
    assert as_lists(channel.answer()) == ({"x": [0.0, 0.0]}, 0.0)
    with pytest.raises(ChannelError, match="each member may be given once"):
        pool(make).upload([1, 1], {"x": make([[[1.0]]] * 2)}, make([[1.0]] * 2))


def test_schema_creates_its_channel(make: Make) -> None:
    tensors, start = {"x": Tensor((1,))}, {"x": make([2.0])}
    assert isinstance(build_channel(Mean("m", tensors), 2, {}, make([0.0])), StandingMean)
    assert isinstance(build_channel(Pool("p", tensors), 2, {}, make([0.0])), EntryPool)
    made = build_channel(Mean("v", tensors, moving=True), 2, start, make([0.0]))
    assert isinstance(made, MovingMean) and made.answer().tensors["x"].tolist() == [2.0]
    with pytest.raises(TypeError, match="a Mean or a Pool is needed"):
        build_channel(Channel("c", tensors), 2, {}, make([0.0]))


def played(kept: AnyChannel, make: Make, rounds: range) -> list[Any]:
    """Three members upload and download for some rounds; all their answers, as lists."""
    answers: list[Any] = []
    for round_ in rounds:
        generator = np.random.default_rng(round_)
        who = [m for m in range(3) if generator.random() < 0.8]
        lead = (len(who), 1) if isinstance(kept, EntryPool) else (len(who),)
        values = {"x": make(generator.normal(size=(*lead, 2, 3)))}
        weights = make(generator.integers(0, 4, (*lead, *kept.channel.rows)))
        if isinstance(kept, MovingMean):
            kept.expect(who)
            kept.upload(who, values, weights, [kept.version] * len(who))
            kept.aggregate()
            answers.append(as_lists(kept.answer()))
        elif isinstance(kept, StandingMean):
            kept.upload(who, values, weights, now=round_)
            answers += [
                kept.expire(round_ - 2),
                as_lists(kept.answer()),
                [as_lists(a) for a in kept.own_contributions(range(3))],
            ]
        else:
            kept.upload(who, values, weights)
            answers.append([as_lists(a) for a in kept.answer(range(3), 5, round_)])
    return answers


KINDS: dict[str, Channel] = {
    "standing": Mean("x", {"x": Tensor((2, 3))}, rows=(2,)),
    "standing, one weight": Mean("x", {"x": Tensor((2, 3))}),
    "moving": Mean("x", {"x": Tensor((2, 3))}, moving=True),
    "moving, one bit": Mean("x", {"x": Tensor((2, 3), down=BIT)}, moving=True),
    "moving, one byte": Mean("x", {"x": Tensor((2, 3), down=INT8)}, moving=True),
    "moving, four bits": Mean("x", {"x": Tensor((2, 3), down=INT4)}, moving=True),
    "pool": Pool("x", {"x": Tensor((2, 3))}, rows=(2,), keep=2, draw=2),
    "pool by row": Pool("x", {"x": Tensor((2, 3))}, rows=(2,), keep=2, draw=2, by="row", include_self=False),
}
every_kind = pytest.mark.parametrize("schema", KINDS.values(), ids=KINDS.keys())


def opened(schema: Channel, make: Make) -> AnyChannel:
    return build_channel(schema, 3, {"x": make(np.ones((2, 3)))}, make([0.0]))


@every_kind
def test_numpy_and_torch_give_the_same_answers(schema: Channel) -> None:
    ours, theirs = (played(opened(schema, make), make, range(8)) for make in (numpy_array, torch_array))
    if schema.tensors["x"].down != BIT:
        assert ours == theirs
    else:  # a mean magnitude is a sum in single precision, and the libraries add in different orders
        for (one, count), (other, same) in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one["x"], other["x"], rtol=1e-5, atol=1e-6)
            assert count == same


@every_kind
def test_channel_continues_from_its_saved_state(schema: Channel, make: Make) -> None:
    whole, first, second = (opened(schema, make) for _ in range(3))
    expected = played(whole, make, range(8))
    before = played(first, make, range(4))
    state = copied(first.state())
    second.load(state)
    assert before + played(second, make, range(4, 8)) == expected


# --- a simulation gives learners the values that the wire would give them


@pytest.mark.parametrize("encoding", [FLOAT32, FLOAT16, INT8, INT4, BIT], ids=lambda e: e.name)
@pytest.mark.parametrize("kind", ["standing", "pool", "pool by row"])
def test_answers_equal_those_decoded_from_the_wire(kind: str, encoding: Encoding) -> None:
    tensors = {"x": Tensor((2, 3), down=encoding)}
    schema: Channel = {
        "standing": Mean("c", tensors, rows=(2,)),
        "pool": Pool("c", tensors, rows=(2,), draw=3),
        "pool by row": Pool("c", tensors, rows=(2,), draw=3, by="row"),
    }[kind]
    federation = Federation(0, {"c": schema}, 3, {}, torch.zeros(1))
    generator = torch.Generator().manual_seed(1)
    lead = (3, 1) if isinstance(schema, Pool) else (3,)
    values = torch.randn(*lead, 2, 3, generator=generator) * torch.tensor([[1.0], [100.0]])  # rows of different sizes
    weights = torch.ones(*lead, 2)
    federation.upload("c", np.arange(3), {"x": values}, weights, np.zeros(3, dtype=int), 1)
    kept = federation.channels["c"]
    assert isinstance(kept, StandingMean | EntryPool)
    exact = kept.answer() if isinstance(kept, StandingMean) else kept.answer([0], 0, 1)[0]
    message = schema.message("down")
    body = codec.encode(message, {"c.x": exact.tensors["x"].numpy(), "c.count": exact.count.numpy()})
    (answer,), which = federation.answers("c", np.array([0]), 1)
    assert which.tolist() == [0]
    arrived = codec.decode(message, body)
    tolerance = 1e-6 if encoding == BIT else 0  # its scale is a sum, and torch adds in another order than NumPy
    np.testing.assert_allclose(answer.tensors["x"], arrived["c.x"], rtol=tolerance, atol=0)
    assert answer.count.tolist() == arrived["c.count"].tolist()


def test_draw_from_too_few_entries_cycles_from_any_offset() -> None:
    pool = EntryPool(Pool("p", {"x": Tensor((1,))}, draw=3), 2, np.zeros(1))
    pool.upload([0, 1], {"x": np.array([[[1.0]], [[2.0]]])}, np.ones((2, 1)))
    seen = {tuple(pool.answer([0], 7, when)[0].tensors["x"][:, 0].tolist()) for when in range(40)}
    assert seen == {(1.0, 2.0, 1.0), (2.0, 1.0, 2.0)}
