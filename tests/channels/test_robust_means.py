"""Means that resist, by hand on tiny tensors and by property; the same bits in NumPy and in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.channels import Answer, MovingMean, StandingMean
from consilience.channels.robust import contribution_norms
from consilience.wire.encodings import BIT, FLOAT32, Bit, Encoding
from consilience.wire.robustness import Robustness
from consilience.wire.schema import Mean, Tensor

Make = Callable[[Any], Any]
LARGEST = float(np.finfo(np.float32).max)
TRIMMED, MEDIAN = Robustness("trimmed", 0.2), Robustness("median")


def numpy_array(values: Any) -> Any:
    return np.asarray(values, dtype=np.float32)


def torch_array(values: Any) -> Any:
    return torch.as_tensor(np.asarray(values, dtype=np.float32))


@pytest.fixture(params=[numpy_array, torch_array], ids=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def standing(make: Make, values: Any, weights: Any, robustness: Robustness, rows: tuple[int, ...] = ()) -> Answer:
    """The answer of a standing mean to which every member has uploaded once."""
    values, weights = make(values), make(weights)
    tensors = {"x": Tensor(tuple(values.shape[1:]))}
    channel = StandingMean(Mean("m", tensors, rows, robustness=robustness), len(values), make([0.0]))
    channel.upload(range(len(values)), {"x": values}, weights)
    return channel.answer()


def moving(make: Make, values: Any, weights: Any, robustness: Robustness, up: Encoding = FLOAT32) -> Any:
    """By how much a moving mean moves that every member has uploaded to once."""
    values = make(values)
    channel = Mean("m", {"x": Tensor(tuple(values.shape[1:]), up)}, moving=True, robustness=robustness)
    mean = MovingMean(channel, len(values), {"x": values[0] * 0})
    mean.upload(range(len(values)), {"x": values}, make(weights), [0] * len(values))
    assert mean.aggregate()
    return mean.answer().tensors["x"]


def either(make: Make, values: Any, weights: Any, robustness: Robustness) -> list[float]:
    """The aggregate, which both kinds of means agree on."""
    found = standing(make, values, weights, robustness).tensors["x"].tolist()
    assert moving(make, values, weights, robustness).tolist() == pytest.approx(found)
    return list(found)


# --- by hand


def test_trimmed_mean_leaves_out_the_ends_of_each_coordinate(make: Make) -> None:
    values = [[1.0, 50.0], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0], [90.0, -70.0]]
    assert either(make, values, [1.0] * 5, TRIMMED) == [3.0, 2.0]


def test_what_is_left_of_a_trimmed_mean_is_averaged_by_weights(make: Make) -> None:
    values = [[0.0], [1.0], [4.0], [9.0]]  # one is trimmed at each end: 0.2 of four, rounded up
    assert either(make, values, [100.0, 1.0, 2.0, 100.0], TRIMMED) == [3.0]


def test_share_is_rounded_up_and_somebody_is_left(make: Make) -> None:
    assert either(make, [[1.0], [2.0], [9.0]], [1.0] * 3, TRIMMED) == [2.0]
    assert either(make, [[1.0], [2.0]], [1.0, 3.0], TRIMMED) == [1.75]  # nothing can be trimmed of two
    assert either(make, [[7.0]], [2.0], TRIMMED) == [7.0]
    many = [[float(i)] for i in range(100)]
    assert either(make, many, [1.0] * 100, Robustness("trimmed", 0.29)) == [49.5]


def test_median_is_the_middle_value_or_the_mean_of_two(make: Make) -> None:
    assert either(make, [[1.0, -5.0], [2.0, 90.0], [70.0, 3.0]], [1.0, 1.0, 1.0], MEDIAN) == [2.0, 3.0]
    assert either(make, [[1.0], [2.0], [4.0], [90.0]], [1.0, 1.0, 1.0, 1.0], MEDIAN) == [3.0]


def test_weight_of_a_member_does_not_move_the_median(make: Make) -> None:
    assert either(make, [[1.0], [2.0], [9.0]], [1.0, 1.0, 1e6], MEDIAN) == [2.0]


def test_member_of_weight_zero_does_not_count(make: Make) -> None:
    assert either(make, [[1.0], [2.0], [9.0], [99.0]], [1.0, 1.0, 1.0, 0.0], MEDIAN) == [2.0]
    assert either(make, [[1.0], [2.0], [9.0], [99.0]], [1.0, 1.0, 1.0, 0.0], Robustness(clip_ratio=2.0)) == [
        pytest.approx((1 + 2 + 4) / 3)
    ]


def test_rows_are_aggregated_each_from_the_members_that_have_it(make: Make) -> None:
    values = [[[1.0], [5.0]], [[2.0], [0.0]], [[9.0], [7.0]]]
    counts = [[1.0, 4.0], [1.0, 0.0], [1.0, 2.0]]
    found = standing(make, values, counts, MEDIAN, rows=(2,))
    assert found.tensors["x"].tolist() == [[2.0], [6.0]] and found.count.tolist() == [3.0, 6.0]
    nobody = standing(make, values, [[1.0, 0.0]] * 3, MEDIAN, rows=(2,))
    assert nobody.tensors["x"].tolist() == [[2.0], [0.0]] and nobody.count.tolist() == [3.0, 0.0]


def test_norm_above_the_limit_is_scaled_down_to_it(make: Make) -> None:
    values = [[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]]
    assert either(make, values, [1.0, 1.0, 2.0], Robustness(clip_norm=2.0)) == pytest.approx([0.45, 0.6])


def test_norm_is_of_each_row_where_weights_are(make: Make) -> None:
    values = [[[3.0, 4.0], [0.3, 0.4]], [[0.0, 0.0], [0.6, 0.8]]]
    found = standing(make, values, [[1.0, 1.0], [1.0, 1.0]], Robustness(clip_norm=1.0), rows=(2,))
    assert found.tensors["x"].tolist() == [pytest.approx([0.3, 0.4]), pytest.approx([0.45, 0.6])]


def test_norm_is_of_all_tensors_together(make: Make) -> None:
    tensors = {"a": Tensor((1,)), "b": Tensor((1,))}
    channel = StandingMean(Mean("m", tensors, robustness=Robustness(clip_norm=1.0)), 1, make([0.0]))
    channel.upload([0], {"a": make([[3.0]]), "b": make([[4.0]])}, make([1.0]))
    found = channel.answer().tensors
    assert [found["a"].tolist(), found["b"].tolist()] == [[pytest.approx(0.6)], [pytest.approx(0.8)]]


def test_relative_limit_is_a_multiple_of_the_median_norm(make: Make) -> None:
    values = [[1.0], [-2.0], [3.0], [100.0]]  # norms 1, 2, 3, 100: the lower of the two in the middle is 2
    assert either(make, values, [1.0] * 4, Robustness(clip_ratio=2.0)) == [pytest.approx((1 - 2 + 3 + 4) / 4)]
    assert either(make, values, [1.0] * 4, Robustness(clip_norm=2.5, clip_ratio=2.0)) == [
        pytest.approx((1 - 2 + 2.5 + 2.5) / 4)
    ]


def test_one_of_two_members_cannot_lift_the_relative_limit(make: Make) -> None:
    assert either(make, [[1.0], [LARGEST]], [1.0, 1.0], Robustness(clip_ratio=3.0)) == [pytest.approx(2.0)]


@pytest.mark.parametrize(
    "robustness", [Robustness(clip_norm=4.0), Robustness(clip_ratio=3.0), TRIMMED, MEDIAN], ids=str
)
def test_largest_float_does_not_ruin_a_mean(make: Make, robustness: Robustness) -> None:
    values = [[1.0, -1.0], [1.5, -1.0], [1.0, -1.5], [LARGEST, -LARGEST]]
    assert all(0.5 < abs(value) < 3 for value in either(make, values, [1.0] * 4, robustness))


def test_absurd_weight_counts_as_the_cap(make: Make) -> None:
    values, weights = [[0.0], [10.0]], [3.0, 1e7]
    assert either(make, values, weights, Robustness(weight_cap=7.0)) == [pytest.approx(7.0)]
    found = standing(make, [[[0.0]], [[10.0]]], [[3.0], [1e7]], Robustness(weight_cap=7.0), rows=(1,))
    assert found.tensors["x"].tolist() == [[pytest.approx(7.0)]] and found.count.tolist() == [10.0]


def test_stale_change_weighs_less_than_the_cap_that_it_was_lowered_to() -> None:
    channel = Mean("m", {"x": Tensor((1,))}, moving=True, max_staleness=15, robustness=Robustness(weight_cap=4.0))
    mean = MovingMean(channel, 2, {"x": np.zeros(1, np.float32)})
    mean.version = 15
    mean.upload([0, 1], {"x": np.array([[0.0], [6.0]], np.float32)}, np.array([4.0, 1e9]), [15, 0])
    mean.aggregate()
    assert mean.answer().tensors["x"].tolist() == [pytest.approx(6.0 * 4 / 8 / (4 + 4))]


def test_uploads_of_a_median_may_come_one_by_one_and_wait(make: Make) -> None:
    mean = MovingMean(Mean("m", {"x": Tensor((1,))}, moving=True, robustness=MEDIAN), 3, {"x": make([0.0])})
    mean.expect([0, 1, 2])
    for member, value in [(2, 9.0), (0, 1.0)]:
        mean.upload([member], {"x": make([[value]])}, make([1.0]), [0])
        assert not mean.ready
    mean.upload([1], {"x": make([[2.0]])}, make([1.0]), [0])
    assert mean.ready and mean.aggregate() and mean.answer().tensors["x"].tolist() == [2.0]
    mean.upload([0], {"x": make([[5.0]])}, make([1.0]), [1])  # nothing of the last aggregation is left
    mean.aggregate()
    assert mean.answer().tensors["x"].tolist() == [7.0]


def test_replaced_and_expired_contributions_leave_a_clipped_mean(make: Make) -> None:
    channel = StandingMean(Mean("m", {"x": Tensor((1,))}, robustness=Robustness(clip_norm=2.0)), 2, make([0.0]))
    channel.upload([0, 1], {"x": make([[LARGEST], [1.0]])}, make([1.0, 1.0]), now=1)
    channel.upload([0], {"x": make([[1.5]])}, make([1.0]), now=2)
    assert channel.answer().tensors["x"].tolist() == [1.25]
    channel.expire(before=2)
    assert channel.answer().tensors["x"].tolist() == [1.5]


# --- one bit for each value


def test_median_of_votes_is_the_vote_of_the_majority(make: Make) -> None:
    vote = Bit(unit=0.5)
    votes = [[0.5, -0.5, 0.5], [0.5, -0.5, -0.5], [-0.5, -0.5, -0.5]]
    assert moving(make, votes, [1.0] * 3, MEDIAN, vote).tolist() == [0.5, -0.5, -0.5]
    assert moving(make, votes[:2], [1.0] * 2, MEDIAN, vote).tolist() == [0.5, -0.5, 0.0]  # no majority


def test_trimming_votes_keeps_the_majority_and_raises_how_far_it_moves(make: Make) -> None:
    votes = [[0.5], [0.5], [0.5], [-0.5], [-0.5]]
    plain, trimmed = (moving(make, votes, [1.0] * 5, r, Bit(unit=0.5)) for r in (Robustness(), TRIMMED))
    assert plain.tolist() == [pytest.approx(0.1)] and trimmed.tolist() == [pytest.approx(0.5 / 3)]


def test_clip_limits_the_scale_which_is_all_that_a_member_can_lift_with_one_bit(make: Make) -> None:
    uploads = [[0.1, -0.1, 0.1, 0.1], [0.1, 0.1, -0.1, 0.1], [1e6, 1e6, 1e6, -1e6]]
    found = moving(make, uploads, [1.0] * 3, Robustness(clip_ratio=1.0), BIT).tolist()
    assert found == pytest.approx([0.1, 0.1 / 3, 0.1 / 3, 0.1 / 3])


# --- by property

VALUES = st.floats(-100, 100, width=32)
ROBUST = st.sampled_from([TRIMMED, MEDIAN, Robustness("trimmed", 0.4, clip_ratio=1.5, weight_cap=3.0)])


@settings(deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, st.integers(0, 5)), min_size=1, max_size=9), ROBUST, st.randoms())
def test_order_of_members_does_not_matter_to_the_bit(
    uploads: list[tuple[float, float, int]], robustness: Robustness, random: Any
) -> None:
    def bits(some: Sequence[tuple[float, float, int]]) -> bytes:
        values = [[a, b] for a, b, _ in some]
        found = standing(numpy_array, values, [float(w) for *_, w in some], robustness).tensors["x"]
        assert (
            standing(torch_array, values, [float(w) for *_, w in some], robustness).tensors["x"].numpy().tobytes()
            == found.tobytes()
        )
        return bytes(found.tobytes())

    shuffled = list(uploads)
    random.shuffle(shuffled)
    assert bits(uploads) == bits(shuffled)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=8), st.data())
def test_median_lies_within_the_range_of_the_good_members(good: list[float], data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.floats(-LARGEST, LARGEST, width=32), max_size=len(good) - 1))
    weights = data.draw(st.lists(st.floats(1, 1e6), min_size=len(good + bad), max_size=len(good + bad)))
    found = float(standing(numpy_array, [[v] for v in good + bad], weights, MEDIAN).tensors["x"][0])
    assert min(good) <= found <= max(good)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=4, max_size=8), st.data())
def test_trimmed_mean_lies_within_the_range_of_the_good_members(good: list[float], data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.floats(-LARGEST, LARGEST, width=32), max_size=len(good) // 4))  # at most 0.2 of all
    weights = data.draw(st.lists(st.floats(1, 1e6), min_size=len(good + bad), max_size=len(good + bad)))
    found = float(standing(numpy_array, [[v] for v in good + bad], weights, TRIMMED).tensors["x"][0])
    slack = 1e-6 * (1 + max(map(abs, good)))
    assert min(good) - slack <= found <= max(good) + slack


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1)
)
def test_norms_are_finite_and_the_same_in_both_libraries(values: list[list[float]]) -> None:
    ours, theirs = (contribution_norms([make(values)[:, None, :]])[:, 0] for make in (numpy_array, torch_array))
    assert np.asarray(ours).tobytes() == theirs.numpy().tobytes() and np.isfinite(ours).all()
    assert np.asarray(ours).tolist() == pytest.approx([math.hypot(*each) for each in values], rel=1e-6)


def test_large_tensors_are_aggregated_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(5, 3, 7)).astype(np.float32)
    weights = np.arange(15.0).reshape(5, 3)
    whole = standing(numpy_array, values, weights, Robustness("trimmed", 0.2, clip_ratio=1.1), rows=(3,))
    monkeypatch.setattr("consilience.channels.robust._BLOCK", 1)
    parts = standing(numpy_array, values, weights, Robustness("trimmed", 0.2, clip_ratio=1.1), rows=(3,))
    assert whole.tensors["x"].tobytes() == parts.tensors["x"].tobytes()
