"""Differences to a baseline: paired by seed, with 95 % intervals, in JSON and as a table."""

from __future__ import annotations

from typing import Any

import pytest

from consilience.presentation.baseline import add_differences, differences_table
from consilience.presentation.tables import table_text


def run(method: str, accuracies: list[float], own: list[list[float | None]], **more: Any) -> dict[str, Any]:
    """The part of a run's summary that a comparison with a baseline reads."""
    found = {"accuracy": {"by_seed": accuracies}, "accuracy_own": {"by_learner": own}, "learners": len(own[0])}
    return {"method": method, "settings": {}, "rounds": 5, "seed": 0, **found} | more


BASELINE = run("fedavg", [90.0, 91.0, 92.0], [[80.0, 90.0], [80.0, 90.0], [80.0, 90.0]])
OTHER = run("consilience", [91.0, 93.0, 95.0], [[82.0, 90.0], [82.0, 90.0], [82.0, None]])


def test_differences_are_paired_by_seed_with_a_t_interval() -> None:
    other, baseline = add_differences([OTHER, BASELINE], 1)  # the baseline may come last
    assert "against" not in baseline and other["against"]["method"] == "fedavg"
    accuracy, own = other["against"]["accuracy"], other["against"]["accuracy_own"]
    half = 4.303 / 3**0.5  # differences 1, 2 and 3
    assert accuracy["mean"] == pytest.approx(2) and accuracy["seeds"] == 3
    assert accuracy["interval"] == pytest.approx([2 - half, 2 + half])
    assert own["mean"] == pytest.approx((1 + 1 - 3) / 3)  # seed means 86, 86 and 82 against 85
    text = table_text(differences_table([other, baseline]) or pytest.fail("there is no table"))
    assert "Difference to fedavg with the same seeds (3 seeds)" in text
    assert "consilience +2.0 (-0.5 to +4.5) -0.3 (-6.1 to +5.4)" in " ".join(text.split())


def test_one_seed_has_no_interval_and_says_so() -> None:
    one = [run("fedavg", [90.0], [[80.0]]), run("fedprox", [91.5], [[79.0]])]
    found = add_differences(one, 0)
    assert found[1]["against"]["accuracy"] == {"mean": 1.5, "interval": None, "seeds": 1}
    text = table_text(differences_table(found) or pytest.fail("there is no table"))
    assert "+1.5" in text and "-1.0" in text and "One seed has no interval" in text


def test_runs_that_differ_in_learners_rounds_or_seeds_have_no_difference() -> None:
    pooled = run("centralized", [95.0] * 3, [[95.0]] * 3)
    shorter, later = OTHER | {"rounds": 4}, OTHER | {"seed": 7}
    found = [each["against"] for each in add_differences([BASELINE, pooled, shorter, later], 0)[1:]]
    assert found[0]["accuracy"]["mean"] == pytest.approx(4) and found[0]["accuracy_own"] is None
    assert [found[1][key] for key in ("accuracy", "accuracy_own")] == [None, None]
    assert [found[2][key] for key in ("accuracy", "accuracy_own")] == [None, None]
    assert differences_table([BASELINE, OTHER]) is None and add_differences([OTHER], 1) == [OTHER]
