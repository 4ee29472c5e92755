"""What a trial says, with answers made by hand: the verdict, the learners, the choice of a method, the sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from consilience.presentation.advice import Advice, make_advice
from consilience.presentation.paired import Difference
from consilience.presentation.trial import (
    WITH_ITSELF,
    LearnerGain,
    LeftOut,
    TrialAnswers,
    TrialSize,
    best_of_all,
    choose_by_others,
    difference,
    learner_gains,
    score,
    sign_test,
    surely_helped,
    verdict,
)

ALONE, LONGER, CONTROL = "independent", "independent for 2 times as long", "independent:batch_order=1"


def answers(method: str, right: Sequence[Sequence[int]], of: int = 10, size: int = 0) -> TrialAnswers:
    """The first `right` of `of` held-out samples are right, of each repetition and learner; the common answer's too."""
    own = [[np.arange(of) < count for count in row] for row in right]
    return TrialAnswers(method, own, 100 * np.array(right, dtype=float) / of, size, size)


def advice(together: dict[str, TrialAnswers], alone: TrialAnswers, **more: object) -> Advice:
    learners, seeds = len(alone.own[0]), len(alone.own)
    size = TrialSize("wards", tuple(map(str, range(learners))), 10 * learners * seeds, 30, seeds, 0, **more)  # type: ignore[arg-type]
    rest = {name: replace(alone, method=name) for name in (LONGER, CONTROL)}
    return make_advice(
        size, {alone.method: alone, **rest, **together}, [ALONE, LONGER], CONTROL, [LeftOut("fedavg", 53_632)]
    )


# --- numbers


def test_a_sign_test_counts_coins() -> None:
    assert sign_test(5, 0) == 1 / 32
    assert sign_test(3, 1) == 5 / 16  # four of four, or three: (1 + 4) / 16
    assert sign_test(0, 0) == 1.0


def test_every_learner_counts_alike_whatever_it_holds_out() -> None:
    uneven = TrialAnswers(
        "m", [[np.ones(2, bool), np.zeros(8, bool)], [np.ones(0, bool), np.ones(4, bool)]], np.zeros((2, 2))
    )
    np.testing.assert_allclose(uneven.by_repetition, [50.0, 100.0])  # a learner that held out nothing is left out
    np.testing.assert_allclose(uneven.by_learner, [100.0, 100 / 3])


def test_scores_that_are_no_means_come_from_sums() -> None:
    """F1 of two samples: of 2 x 1 + 0 and 3 + 2 decisions; of explained variance the mean."""
    assert score(np.array([[2.0, 3.0], [0.0, 2.0]])) == 40.0
    assert score(np.array([[0.0, 0.0]])) == 100.0  # there is nothing to find, and nothing was found
    assert score(np.array([0.5, -1.5])) == -50.0


def test_a_sample_counts_for_the_answer_that_is_nearer() -> None:
    alone = TrialAnswers("alone", [[np.array([0.2, 0.2, 0.2, 0.2, 0.2])]], np.zeros((1, 1)))
    together = TrialAnswers("together", [[np.array([0.3, 0.3, 0.3, 0.3, 0.3])]], np.zeros((1, 1)))
    (found,) = learner_gains(together, alone, "a", worth=1.0)
    assert (found.effect, found.chance) == ("helped", 1 / 32) and found.gain == pytest.approx(10.0)
    one_is_far_off = TrialAnswers("far", [[np.array([0.3, 0.3, 0.3, 0.3, -9.0])]], np.zeros((1, 1)))
    (mixed,) = learner_gains(one_is_far_off, alone, "a", worth=1.0)
    assert mixed.gain < -100 and mixed.effect == "not clear"  # it is worse, and yet better for four samples of five
    sets = [[np.array([[2.0, 2.0], [2.0, 2.0], [0.0, 0.0], [2.0, 3.0]])]]
    fewer = [[np.array([[2.0, 2.0], [2.0, 3.0], [0.0, 0.0], [0.0, 2.0]])]]
    labels = learner_gains(
        TrialAnswers("together", sets, np.zeros((1, 1))), TrialAnswers("alone", fewer, np.zeros((1, 1))), "a", 1.0
    )
    assert labels[0].chance == 1 / 4 and labels[0].together == pytest.approx(600 / 7)


def test_differences_are_paired_by_repetition() -> None:
    ours, theirs = answers("a", [[9, 7], [8, 8], [9, 9]]), answers("b", [[8, 6], [6, 8], [6, 6]])
    assert difference(ours, theirs).by_seed == pytest.approx((10.0, 10.0, 30.0))
    assert difference(ours, theirs, common=True).by_seed == pytest.approx((10.0, 10.0, 30.0))


def test_a_method_is_chosen_by_the_other_repetitions() -> None:
    """One is far better in a single repetition: there the others choose, and know nothing of it."""
    lucky, steady = answers("lucky", [[10], [5], [5]]), answers("steady", [[6], [6], [6]])
    chosen = choose_by_others([lucky, steady])
    assert chosen.methods == ("steady", "lucky", "lucky")
    np.testing.assert_allclose(chosen.answers.by_repetition, [60, 50, 50])
    assert (
        best_of_all([lucky, steady]).method == "lucky"
    )  # 66.7 of all repetitions, and yet no gain over the steady one


def test_of_methods_that_are_near_the_one_that_sends_least_is_chosen() -> None:
    large, small = (
        answers("large", [[9], [9], [9]], of=1000, size=100),
        answers("small", [[6], [6], [6]], of=1000, size=1),
    )
    assert best_of_all([large, small], near=0.5).method == "small"  # 0.9 and 0.6 %
    assert best_of_all([large, small], near=0.1).method == "large"


def test_a_learner_is_helped_by_more_than_chance() -> None:
    alone = answers("alone", [[5, 5, 5]], of=100)
    together = answers("together", [[9, 8, 1]], of=100)  # four, three and minus four samples: 1 / 16, 1 / 8, 1 / 16
    found = learner_gains(together, alone, "abc", worth=1.0)
    assert [each.effect for each in found] == ["helped", "not clear", "harmed"]
    assert [each.gain for each in found] == pytest.approx([4, 3, -4]) and found[0].chance == 1 / 16
    assert learner_gains(together, alone, "abc", worth=4.5)[0].effect == "not clear"
    assert surely_helped(found) == ()
    sure = LearnerGain("z", 100, 5.0, 20.0, "helped", 0.01)
    assert surely_helped([sure]) == (sure,) and surely_helped([sure] * 6) == ()


@pytest.mark.parametrize(
    ("values", "low", "high", "expected"),
    [
        ((4.0, 4.0, 4.0), 2.0, 6.0, "yes"),
        ((0.6, 0.6, 0.6), 0.1, 1.1, "not clear"),  # above 0, but it may not be worth having
        ((0.6, 0.6, 0.6), 0.3, 0.9, "no"),  # above 0, and not worth having
        ((4.0, 4.0, 4.0), -1.0, 9.0, "not clear"),
        ((-4.0, -4.0, -4.0), -5.0, -3.0, "no"),
        ((-1.0, -1.0, -1.0), -2.5, 0.5, "no"),  # a gain of a point is excluded
        ((-1.0, -1.0, -1.0), -4.0, 2.0, "not clear"),
        ((4.0, 4.0), 3.0, 5.0, "not clear"),  # two seeds
    ],
)
def test_verdicts(values: tuple[float, ...], low: float, high: float, expected: str) -> None:
    assert verdict(Difference(values, low, high), worth=1.0) == expected


# --- sentences


def test_no_difference_is_not_called_less() -> None:
    same = answers(ALONE, [[5, 5]] * 4)
    found = advice({"fedavg": answers("fedavg", [[5, 5]] * 4)}, same)
    assert found.verdict == "no" and ": with FedAvg, learners are as accurate as when each trains alone, on" in str(
        found
    )
    assert "learners are as good as when each" in str(
        advice({"fedavg": answers("fedavg", [[5, 5]] * 4)}, same, metric="r2")
    )


def test_yes_with_its_size_its_learners_and_its_bytes() -> None:
    alone = answers(ALONE, [[5, 5, 5]] * 4)
    found = advice({"consilience": answers("consilience", [[8, 8, 8], [7, 8, 8]] * 2, size=1000)}, alone, budget=10_000)
    first, second, third = found.sentences
    assert found.verdict == "yes" and found.helped == ("0", "1", "2") and found.harmed == ()
    assert first == (
        "Yes, working together pays on wards: with the default method (consilience), learners are 28.3 points "
        "more accurate than when each trains alone, on held-out samples of their own (95 % interval +25.3 to +31.4, "
        "4 seeds)."
    )
    assert second == (
        "It helps 3 of 3 learners and harms none; training alone once more, with another order of batches, seems to "
        "help none and to harm none, which is chance."
    )
    assert third == (
        "Use the default method (consilience), which sends 1 kB and receives 1 kB per learner and round, within the "
        "10 kB allowed: it is the only method tried; the trial had 30 rounds and 4 seeds, and 3 learners held out each "
        "of their 120 samples once; FedAvg needs 53.6 kB and was not run."
    )
    assert (
        str(found) == "\n".join(found.sentences)
        and repr(found) == "Advice(yes: +28.3 points with consilience on wards)"
    )


def test_yes_but_not_for_every_learner() -> None:
    alone, together = answers(ALONE, [[5, 5, 5, 8]] * 4), answers("consilience", [[9, 9, 9, 6]] * 4)
    found = advice({"consilience": together}, alone)
    assert found.sentences[0].startswith("Yes, working together pays on wards, but not for every learner: ")
    assert found.sentences[1].startswith(
        "It helps 3 of 4 learners (learners 0, 1 and 2) and harms 1 (learner 3); training alone once more"
    )


def test_no_on_average_but_yes_for_some() -> None:
    alone, together = answers(ALONE, [[5, 8, 8, 8]] * 4), answers("consilience", [[9, 6, 6, 6]] * 4)
    found = advice({"consilience": together}, alone)
    assert (found.verdict, found.for_some, found.helped) == ("no", True, ("0",))
    assert found.sentences[0].startswith("No on average, but working together on wards pays for some learners: with ")
    assert "5.0 points less accurate than when each trains alone, on" in found.sentences[0]
    assert found.sentences[2].startswith("Use the default method")


def test_no_and_not_clear_say_why() -> None:
    alone = answers(ALONE, [[5, 5]] * 4)
    worse = advice({"fedavg": answers("fedavg", [[2, 2]] * 4)}, alone)
    assert worse.sentences[0].startswith("No, working together does not pay on wards: with FedAvg, ")
    assert worse.sentences[0].endswith(", 4 seeds), and a gain of 2 points is unlikely.")
    assert worse.sentences[2].startswith("If you work together all the same, use FedAvg, ")
    unsure = advice({"fedavg": answers("fedavg", [[9, 9], [2, 2]] * 2)}, alone)
    assert unsure.sentences[0].startswith("Not clear from this trial whether working together pays on wards: ")
    assert (
        unsure.sentences[0].endswith("which allows for no gain and for one of 2 points: more samples would tell.")
        and not unsure.for_some
    )
    assert (
        "; for all of them the difference is not clear; training alone once more, with another order of"
        in unsure.sentences[1]
    )


def test_the_common_answer_is_named_where_it_gains_more() -> None:
    own, common = [[np.arange(10) < 6] * 2] * 4, np.array([[90.0, 90.0], [88.0, 92.0]] * 2)
    alone = TrialAnswers(ALONE, [[np.arange(10) < 5] * 2] * 4, np.array([[40.0, 40.0], [41.0, 41.0]] * 2))
    found = advice({"consilience": TrialAnswers("consilience", own, common)}, alone)
    assert found.sentences[0].endswith(
        "; on held-out samples of all learners, models that learned together are right on 90.0 %, those that learned "
        "alone on 40.5 %."
    )


def test_other_scores_are_named() -> None:
    alone = answers(ALONE, [[5, 5, 5]] * 4)
    found = advice({"consilience": answers("consilience", [[8, 8, 8]] * 4)}, alone, metric="r2")
    assert (
        "learners are 30.0 points better than when each trains alone" in found.sentences[0]
        and "own R² %" in found.table()
    )
    own, common = [[np.arange(10) < 6] * 2] * 4, np.array([[90.0, 90.0]] * 4)
    plain = TrialAnswers(ALONE, [[np.arange(10) < 5] * 2] * 4, np.array([[40.0, 40.0]] * 4))
    labels = advice({"consilience": TrialAnswers("consilience", own, common)}, plain, metric="f1")
    assert "learned together have an F1 of 90.0 %, those that learned alone 40.0 %." in str(labels)


def test_a_better_way_of_learning_alone_is_what_counts() -> None:
    alone, together = answers(ALONE, [[5, 5]] * 4), answers("consilience", [[8, 8]] * 4)
    longer = answers(LONGER, [[9, 9]] * 4)
    size = TrialSize("wards", ("0", "1"), 80, 30, 4, 0)
    found = make_advice(
        size, {ALONE: alone, LONGER: longer, CONTROL: alone, "consilience": together}, [ALONE, LONGER], CONTROL
    )
    assert (
        found.verdict == "no"
        and "10.0 points less accurate than when each trains alone for 2 times as long, on" in found.sentences[0]
    )


def test_ways_of_learning_alone_that_are_alike_do_not_look_worse_than_they_are() -> None:
    """Each is better in every other seed; chosen by the others, it would be the worse one in each."""
    alone, longer = answers(ALONE, [[6, 6], [4, 4]] * 2), answers(LONGER, [[4, 4], [6, 6]] * 2)
    together = answers("consilience", [[5, 5]] * 4)
    trial = {ALONE: alone, LONGER: longer, CONTROL: alone, "consilience": together}
    found = make_advice(TrialSize("wards", ("0", "1"), 80, 30, 4, 0), trial, [ALONE, LONGER], CONTROL)
    assert found.gain.mean == 0.0 and found.alone == ALONE
    np.testing.assert_allclose(choose_by_others([alone, longer]).answers.by_repetition, 40.0)


def test_learners_that_are_not_clear_and_methods_that_take_turns_are_named() -> None:
    alone = answers(ALONE, [[5, 5, 5, 5]] * 4)
    mixed = {
        "fedavg": answers("fedavg", [[9, 9, 5, 5]] * 3 + [[2, 9, 5, 5]]),
        "fedprox": answers("fedprox", [[8, 8, 5, 5]] * 4),
    }
    found = advice(mixed, alone)
    assert found.chosen == ("fedprox", "fedprox", "fedprox", "fedavg")
    assert (
        ": with FedAvg or FedProx (for each seed, the one that the other seeds choose), learners are"
        in found.sentences[0]
    )
    assert "; for learners 2 and 3 the difference is not clear; " in found.sentences[1]
    itself = f"fedproto{WITH_ITSELF}"
    trial = {ALONE: alone, LONGER: alone, itself: answers(itself, [[6, 6, 6, 6]] * 4), CONTROL: alone, **mixed}
    size = TrialSize("wards", tuple("abcd"), 160, 30, 4, 0)
    regularized = make_advice(size, trial, [ALONE, LONGER, itself], CONTROL)
    assert "accurate than when each trains alone with the loss term of FedProto on own data, on" in str(regularized)


def test_tables_and_numbers() -> None:
    alone = answers(ALONE, [[5, 5]] * 4)
    found = advice(
        {"consilience": answers("consilience", [[8, 8]] * 4), "fedavg": answers("fedavg", [[7, 7]] * 4)}, alone
    )
    text = found.table()
    assert "consilience *" in text and "+30.0 (+30.0 to +30.0)" in text and "helped" in text
    assert "10.0 points more accurate than FedAvg (95 % interval +10.0 to +10.0)" in found.sentences[2]
    assert "<table>" in found._repr_html_() and found.sentences[1].split(";")[0] in found._repr_html_()
    numbers = found.to_dict()
    assert numbers["gain"] == {"mean": 30.0, "interval": [30.0, 30.0], "seeds": 4}
    assert [each["method"] for each in numbers["methods"]] == [ALONE, LONGER, CONTROL, "consilience", "fedavg"]
    assert numbers["chosen"] == ["consilience"] * 4 and numbers["learners"][1]["gain"] == 30.0
