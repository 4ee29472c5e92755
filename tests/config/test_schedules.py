"""Schedules: numbers that change with the rounds."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from consilience.config.schedules import (
    Schedule,
    as_number,
    at_round,
    highest_value,
    number_or_schedule,
    scheduled,
    value_at,
)
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Observations


def test_ramp_is_linear_and_then_constant() -> None:
    ramp = scheduled("ramp(2, 10, 4)")
    assert [value_at(ramp, r) for r in (0, 1, 2, 3, 4, 5, 100)] == [2, 4, 6, 8, 10, 10, 10]


def test_cosine_is_flat_at_both_ends() -> None:
    cosine = scheduled("cosine(1, 0, 4)")
    assert [cosine.at(r) for r in (0, 2, 4, 9)] == pytest.approx([1, 0.5, 0, 0])
    assert cosine.at(1) == pytest.approx(0.8535533905932737)


def test_constant_schedule_never_changes() -> None:
    assert {value_at(scheduled("constant(3)"), r) for r in range(5)} == {3.0}
    assert value_at(7, 3) == 7


def test_values_that_are_no_schedules_are_returned_unchanged() -> None:
    assert scheduled("classifier") == "classifier"
    assert scheduled(3) == 3


def test_using_a_schedule_as_a_number_is_refused() -> None:
    ramp: Any = scheduled("ramp(0,10,20)")
    for used in (float, bool, lambda s: s * 2, lambda s: 2.0 - s, lambda s: s < 3, torch.tensor, as_number):
        with pytest.raises((TypeError, RuntimeError)):
            used(ramp)
    with pytest.raises(TypeError, match=r"ramp\(0, 10, 20\) is a schedule and not a number"):
        as_number(ramp)


def test_schedule_round_trips_through_its_text_form() -> None:
    ramp = scheduled("ramp(0,10,20)")
    assert repr(ramp) == str(ramp) == "ramp(0, 10, 20)"
    assert scheduled(repr(ramp)) == ramp != scheduled("ramp(1, 10, 20)")
    assert ramp != 10.0
    assert pickle.loads(pickle.dumps(ramp)) == ramp  # as it is sent to a worker
    assert highest_value(scheduled("cosine(10, 0, 5)")) == 10 and highest_value(3) == 3


def test_schedules_in_fields_are_evaluated_at_each_round() -> None:
    exchange = Observations(weight=Schedule("ramp", 0, 4, 2), temperature=0.5)
    assert [at_round(exchange, r).weight for r in (0, 1, 2, 3)] == [0, 2, 4, 4]
    assert at_round(Observations(), 1) == Observations()


@pytest.mark.parametrize(
    "text", ["ramp(1, 2)", "ramp()", "ramp(1, 2, 0)", "ramp(1, 2, 1.5)", "ramp(a, 2, 3)", "cosine(nan, 1, 2)"]
)
def test_malformed_schedule_is_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"schedule '(ramp|cosine).*(write ramp|must be a (whole|finite) number)"
    ):
        scheduled(text)


def test_unknown_schedule_shape_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'ramp'"):
        scheduled("ramped(0, 1, 2)")


def test_bounds_are_checked_over_the_whole_schedule() -> None:
    number_or_schedule("kd", Schedule("ramp", 0, 1, 5))
    with pytest.raises(ConfigurationError, match=r"kd is ramp\(-1, 1, 5\)"):
        number_or_schedule("kd", Schedule("ramp", -1, 1, 5))
