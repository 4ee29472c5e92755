"""What runs say in sentences: the headline, paired differences, who gains and who loses, and warnings."""

from __future__ import annotations

from typing import Any

import pytest

from consilience.presentation.gains import add_gains, gains
from consilience.presentation.message import message, page_title
from consilience.presentation.paired import paired_difference, t_quantile
from consilience.presentation.tables import comparison_table, table_text


def run(method: str, accuracies: list[float], local: list[list[float | None]], sent: float = 0.0, **more: Any) -> Any:
    """The summary of a run: accuracy by seed, and on own distribution by seed and learner."""
    mean = sum(accuracies) / len(accuracies)
    known = [value for row in local for value in row if value is not None]
    return {
        "method": method,
        "settings": {},
        "data": "digits",
        "model": "mlp",
        "learners": len(local[0]),
        "rounds": 20,
        "seed": 0,
        "seeds": len(accuracies),
        "accuracy": {"mean": mean, "std_seeds": 0.5, "std_learners": 1.0, "by_seed": accuracies},
        "accuracy_own": {"mean": sum(known) / len(known), "by_learner": local},
        "bytes": {"up": sent / 4, "down": sent / 4},
        "bytes_total": sent,
        "seconds": {"total": 1.0},
        "diverged": [],
        "finished": True,
    } | more


ALONE = run("independent", [93.0, 93.2, 92.8], [[93.0, 93.0], [93.2, 93.2], [92.8, 92.8]])
FEDAVG = run("fedavg", [95.7, 95.8, 95.6], [[95.0, 91.0], [95.2, 92.0], [94.8, 92.0]], 13.4e6)
DEFAULT = run("consilience", [96.2, 96.4, 96.0], [[96.0, 96.1], [96.4, 93.2], [96.0, 96.0]], 1.3e6)


def test_headline_names_the_default_method_fedavg_and_learning_alone() -> None:
    said = message([ALONE, FEDAVG, DEFAULT])
    assert said is not None
    assert said.headline == (
        "With 2 learners on digits, the default method (consilience) reaches 96.2 % for 1.3 MB; "
        "FedAvg 95.7 % for 13.4 MB; learning alone 93.0 %."
    )
    assert said.helped == (
        "Yes: on everybody's data the default method is 3.2 points more accurate than learning alone "
        "(95 % interval +3.2 to +3.2, 3 seeds)."
    )
    assert said.whom.startswith(
        "On data like their own, the default method helps 5 of 6 learners over 3 seeds by more than a point and harms "
        "none, 1 is about the same; on average +2.6 points (95 % interval "
    )
    assert said.cost.startswith(
        "1.3 MB in all: per learner and round 325 kB up and 325 kB down. FedAvg sends 10.3 times as much and is 0.5 "
    )
    assert said.warnings == ()


def test_most_accurate_method_leads_where_there_is_no_default() -> None:
    better = run("fedprox", [97.0, 97.0, 97.0], FEDAVG["accuracy_own"]["by_learner"], 5e6)
    said = message([ALONE, FEDAVG, better])
    assert (
        said is not None and "digits, FedProx, the most accurate of 2, reaches 97.0 % for 5 MB; FedAvg" in said.headline
    )


def test_difference_that_may_be_zero_is_not_claimed() -> None:
    noisy = run("consilience", [92.0, 95.5, 93.0], DEFAULT["accuracy_own"]["by_learner"], 1e6)
    said = message([ALONE, noisy])
    assert said is not None and said.helped.startswith("No clear difference on everybody's data: the default method is")
    worse = run("consilience", [90.0, 90.3, 89.7], DEFAULT["accuracy_own"]["by_learner"], 1e6)
    said = message([ALONE, worse])
    assert said is not None and said.helped.startswith("No: on everybody's data the default method is 3.0 points less")


def test_one_or_two_seeds_prove_nothing() -> None:
    one = [run("independent", [90.0], [[90.0]]), run("consilience", [95.0], [[95.0]], 1e6)]
    said = message(one)
    assert said is not None and "in one seed. One seed does not show" in said.helped and "(one seed)" in said.whom
    two = [run("independent", [90.0, 90.0], [[90.0]] * 2), run("consilience", [95.0, 95.0], [[95.0]] * 2, 1e6)]
    said = message(two)
    assert said is not None and said.helped.startswith("No clear difference")
    assert "(+5.0 and +5.0 in two seeds). Two seeds are too few" in said.helped


def test_warning_names_method_learners_and_points() -> None:
    lost = run("fedavg", FEDAVG["accuracy"]["by_seed"], [[90.0, 93.0], [90.2, 93.5], [89.8, 92.8]], 13.4e6)
    said = message([ALONE, lost, DEFAULT])
    assert said is not None
    assert said.warnings == (
        "Working together lowers accuracy on own data: fedavg -1.5 points on average (3 of 6 learners over 3 seeds "
        "lose more than a point).",
    )
    assert said.sentences[-1] == said.warnings[0]


def test_runs_are_paired_by_seed_and_only_with_equal_tasks() -> None:
    later = run("fedavg", [95.0, 95.0], [[95.0, 92.0]] * 2, 1e6, seed=2)  # seeds 2 and 3; learning alone has 0 to 2
    (_, gain) = gains([ALONE, later])
    assert gain is not None and gain.points == {(2, 0): 2.2, (2, 1): -0.8}
    for change in ({"rounds": 21}, {"learners": 3}, {"data": "mnist"}, {"seed": 7}):
        runs = [ALONE, FEDAVG | change]
        assert gains(runs) == [None, None]
        said = message(runs)
        assert said is not None and said.helped.startswith("Not known whether it helps: there is no run of independent")
    assert gains([run("centralized", [97.0], [[97.0, 97.0]]), ALONE]) == [None, None]


def test_learner_without_accuracy_is_left_out() -> None:
    absent = run("fedavg", [95.0] * 3, [[95.0, None]] * 3, 1e6)
    found = add_gains([ALONE, absent])
    assert "helped" not in found[0] and "gain_own" not in found[0] and "control" not in found[1]
    assert (found[1]["helped"], found[1]["harmed"]) == (3, 0)
    assert found[1]["gain_own"]["learners"] == 3 and found[1]["gain_own"]["mean"] == pytest.approx(2.0)
    assert found[1]["gain_own"]["interval"] == pytest.approx([2 - 4.303 * 0.2 / 3**0.5, 2 + 4.303 * 0.2 / 3**0.5])


def test_a_difference_of_exactly_one_point_neither_helps_nor_harms() -> None:
    alone, other = (
        run("independent", [80.0], [[80.0, 80.0, 80.0, 80.0]]),
        run("fedavg", [80.0], [[81.0, 79.0, 81.1, 78.9]]),
    )
    (_, gain) = gains([alone, other])
    assert gain is not None and (gain.helped, gain.harmed, gain.learners) == (1, 1, 4)


def test_control_counts_learners_that_differ_by_the_batch_order_alone() -> None:
    control = run("independent", [93.1] * 3, [[94.5, 93.0], [93.0, 91.0], [93.0, 93.0]], settings={"batch_order": 1})
    other = run("independent", [70.0] * 3, [[70.0, 70.0]] * 3, settings={"own_head": True})  # more settings
    for order in ([control, DEFAULT, other, ALONE], [ALONE, other, control, DEFAULT]):
        found = {(s["method"], *s["settings"]): s for s in add_gains(order)}
        counts = {"helped": 1, "harmed": 1, "learners": 6}
        assert found["consilience",]["control"] == counts and found["consilience",]["helped"] == 5
        own = found["independent", "batch_order"]
        assert (own["helped"], own["harmed"], own["gain_own"]["learners"]) == (1, 1, 6) and "control" not in own
        assert "helped" not in found["independent",] and "helped" not in found["independent", "own_head"]
    said = message([ALONE, control, DEFAULT])
    assert said is not None and said.whom.endswith(
        "Control: learning alone with another batch order helps 1 of 6 learners and harms 1."
    )
    assert said.own == "Own answers, on data like each learner's own: the default method 95.6 %; learning alone 93.0 %."
    best = run("independent", [99.0] * 3, control["accuracy_own"]["by_learner"], settings={"batch_order": 1})
    text = " ".join(table_text(comparison_table([ALONE, best, DEFAULT])).split())
    assert "consilience * " in text and "batch_order=1 * " not in text  # the control is never the best method
    assert "independent batch_order=1: the control." in text


def test_comparison_table_has_columns_of_helped_and_harmed_and_marks_the_best_row() -> None:
    text = table_text(comparison_table([ALONE, FEDAVG, DEFAULT]))
    (best,) = [line.split() for line in text.splitlines() if line.startswith(" consilience")]
    assert best[:2] == ["consilience", "*"] and best[7:9] == ["5/6", "0/6"]
    assert "helped" in text and "harmed" in text and "*: most accurate." in " ".join(text.split())
    alone = table_text(comparison_table([DEFAULT]))
    assert "helped" not in alone and "*" not in alone


def test_unfinished_and_diverged_runs_are_named() -> None:
    said = message([ALONE, DEFAULT | {"finished": False}, FEDAVG | {"diverged": ["NaN"]}])
    assert said is not None and said.warnings == ("Not finished: consilience.", "Diverged: fedavg.")
    assert message([FEDAVG | {"diverged": ["NaN"]}]) is None


def test_sweep_names_best_and_worst_setting() -> None:
    settings = [
        FEDAVG | {"set": {"method.every": 1}},
        run("fedavg", [90.0] * 3, [[90.0]] * 3, 1e6, set={"method.every": 9}),
    ]
    said = message(settings)
    assert said is not None
    assert (
        "every=1 is the best of 2 settings of fedavg by accuracy on the test set: 95.7 % for 13.4 MB; the worst is "
        "every=9: 90.0"
    ) in said.headline
    assert said.warnings[0].startswith("Settings are ranked by accuracy on the test set: the test set chose the best")
    held = [s | {"accuracy_validation": {"mean": mean}} for s, mean in zip(settings, (70.0, 80.0), strict=True)]
    said = message(held)
    assert said is not None and said.headline == (
        "With 1 learner on digits, every=9 is the best of 2 settings of fedavg by validation accuracy: 80.0 % "
        "(90.0 % on the test set) for 1 MB; the worst is every=1: 70.0 % for 13.4 MB."
    )
    assert not any("test set chose" in warning for warning in said.warnings)
    assert page_title(settings) == "2 settings of every for fedavg on digits"


def test_title_says_what_was_compared() -> None:
    assert page_title([ALONE, FEDAVG, DEFAULT]) == "independent, fedavg and consilience compared on digits"
    assert page_title([ALONE | {"method": name} for name in "abcd"]) == "4 methods compared on digits"
    assert page_title([DEFAULT | {"data": "data/wine.csv"}]) == "consilience on wine.csv"


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (4, 2.776), (15, 2.131), (16, 2.120), (60, 2.000)])
def test_quantiles_of_student_t(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-3)


def test_interval_of_paired_differences() -> None:
    found = paired_difference({0: 1.0, 1: 2.0, 2: 3.0, 9: 50.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert found is not None and found.by_seed == (1.0, 2.0, 3.0) and not found.clear
    assert (found.low, found.high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
