"""Tables of the thesis with outcomes made by hand: their numbers are computed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from consilience.papers import REPRODUCTIONS, Outcome, ResultSection
from consilience.papers.thesis.best_methods import best_methods
from consilience.papers.thesis.frontier import weights_name

Means = Sequence[float]


def accuracy(by_seed: Means) -> dict[str, Any]:
    return {
        "mean": fmean(by_seed),
        "std_seeds": stdev(by_seed) if len(by_seed) > 1 else None,
        "by_seed": list(by_seed),
    }


def outcome(labels: Mapping[str, Any], by_seed: Means, up: int = 0, down: int = 0, **others: Any) -> Outcome:
    """An outcome of a cell; its method is its row unless it is given."""
    sent = {"up": up, "down": down}
    common = {"method": labels["row"], "settings": {}, "data": "mnist", "learners": 10, "rounds": 100, "seed": 0}
    reached = {"accuracy": accuracy(by_seed), "seeds": len(by_seed), "bytes": sent, "message_bytes": sent}
    return Outcome(labels, common | reached | others, Path("nowhere"))


def sections(name: str, outcomes: Sequence[Outcome]) -> dict[str, ResultSection]:
    return {section.name: section for section in REPRODUCTIONS[name].sections(outcomes)}


# --- table 1


def table1(row: str, by_seed: Means, up: int, down: int, learners: int = 2) -> Outcome:
    return outcome({"task": "MNIST", "learners": learners, "row": row}, by_seed, up, down)


def test_table1_compares_the_default_method_with_fedavg_by_seed() -> None:
    """Differences 1, 2, 0 and 1: mean 1, deviation 0.816, half of the interval 3.182 * 0.816 / 2 = 1.299."""
    shown = sections(
        "thesis-table1",
        [
            table1("fedavg", [90, 91, 92, 93], 800, 820),
            table1("consilience", [91, 93, 92, 94], 70, 130),
            table1("consilience", [80, 80], 70, 130, learners=5),  # nothing to compare it with
        ],
    )
    assert shown["against-fedavg"].heading == "The default method against FedAvg with a common start"
    assert shown["against-fedavg"].table == [
        {
            "task": "MNIST",
            "N": 2,
            "fedavg": "91.5 ± 1.3",
            "consilience": "92.5 ± 1.3",
            "difference": "+1.0 (-0.3 to +2.3)",
            "of fedavg's bytes": "1/8.1",
        }
    ]
    (against,) = shown["against"].table
    assert (against["above"], against["of fedavg's bytes"]) == (-1.95, "1/8.1")
    rows = {row["method"]: row for row in shown["table-mnist"].table}
    assert (rows["consilience"]["upload, bytes"], rows["consilience"]["download, bytes"]) == (70, 130)


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [([91], [90.5], "+0.5 (one seed)"), ([91, 92], [90, 92.5], "+0.2 (+1.0 and -0.5 in two seeds)")],
)
def test_few_seeds_have_no_interval(ours: Means, theirs: Means, text: str) -> None:
    shown = sections("thesis-table1", [table1("fedavg", theirs, 10, 10), table1("consilience", ours, 1, 1)])
    assert shown["against-fedavg"].table[0]["difference"] == text


# --- heterogeneity

ALONE, CONTROL = "independent", "independent:batch_order=1"


def condition(row: str, by_seed: Means, own: Sequence[Means], name: str = "case 7a") -> Outcome:
    method: dict[str, Any] = {"method": ALONE, "settings": {"batch_order": 1}} if row == CONTROL else {}
    local = accuracy([fmean(learners) for learners in own]) | {"by_learner": own}
    return outcome({"condition": name, "row": row}, by_seed, accuracy_own=local, **method)


HETEROGENEOUS = [
    condition("fedavg", [80, 82, 84], [[80, 80], [81, 81], [80, 80]]),
    condition(ALONE, [60, 61, 62], [[80, 80], [80, 80], [80, 80]]),
    condition("representation-sharing", [79, 81, 83], [[80, 80], [80, 80], [80, 80]]),
    condition("consilience", [82, 81, 85], [[82, 79.5], [78, 81.5], [81, 83]]),
    condition(CONTROL, [99, 99, 99], [[80.5, 80], [80, 81.01], [80, 78.99]]),
]


def test_best_methods_are_marked_by_the_paired_standard_error() -> None:
    """To the best, 82.67: fedavg 2, -1, 1, mean 0.67, error 1.53 / 1.73 = 0.88; representations 3, 0, 2: mean 1.67."""
    assert best_methods(HETEROGENEOUS) == {"consilience", "fedavg"}
    (line,) = sections("thesis-heterogeneity", HETEROGENEOUS)["heterogeneity"].table
    assert line == {
        "learners' data": "case 7a",
        "fedavg": "82.0 ± 2.0 *",
        ALONE: "61.0 ± 1.0",
        "representation-sharing": "81.0 ± 2.0",
        "consilience": "82.7 ± 2.1 *",
        CONTROL: "99.0 ± 0.0",
    }


def test_heterogeneity_counts_the_rows_in_which_the_default_method_is_best() -> None:
    second = [condition("fedavg", [90], [[80, 80]], "alpha 1"), condition("consilience", [89], [[90, 90]], "alpha 1")]
    shown = sections("thesis-heterogeneity", [*HETEROGENEOUS, *second])
    best = "consilience is best or within one standard error of the best method shown in {} of 2 rows."
    assert shown["heterogeneity"].text.endswith(best.format(1)) and "20 %" in shown["heterogeneity"].text
    assert shown["own"].text.endswith(best.format(2))
    assert shown["heterogeneity"].table[1] == {"learners' data": "alpha 1", "fedavg": "90.0 *", "consilience": "89.0"}


def test_centralized_and_single_methods_are_not_marked() -> None:
    one = condition("fedavg", [90, 91], [[80, 80], [80, 80]])
    pooled = condition("centralized", [99, 99], [[80, 80], [80, 80]])
    assert best_methods([one, pooled]) == frozenset()
    assert best_methods([one, pooled, condition("fedprox", [80, 81], [[80], [80]])]) == {"fedavg"}
    assert not sections("thesis-heterogeneity", [one])["heterogeneity"].text.endswith("rows.")


def test_heterogeneity_shows_who_is_helped_and_harmed_beside_the_control() -> None:
    """Of six learners: consilience 82, 81.5 and 83 against 80 are helped, 78 is harmed; the control 81.01 and 78.99."""
    (line,) = sections("thesis-heterogeneity", HETEROGENEOUS)["helped"].table
    assert line == {
        "learners' data": "case 7a",
        "fedavg": "0 / 0",
        "representation-sharing": "0 / 0",
        "consilience": "50 / 17",
        CONTROL: "17 / 17",
    }
    assert "helped" not in sections("thesis-heterogeneity", HETEROGENEOUS[:1])


# --- frontier and growth


def test_frontier_ranks_compositions_by_bytes_both_ways() -> None:
    found = [
        ("MNIST", "weights, 1 bit up, 32 down", [80.0, 82.0], 4000, 124_000),
        ("MNIST", "weights, 4 bits up and down", [79.0, 80.0], 16_000, 16_000),
        ("MNIST", "nothing", [70.0, 71.0], 0, 0),
        ("CIFAR-10", "nothing", [40.0], 0, 0),
    ]
    shown = sections("frontier", [outcome({"task": t, "row": row}, by, up, down) for t, row, by, up, down in found])
    assert list(shown) == ["frontier-mnist", "frontier-cifar-10"]
    assert [tuple(row.values()) for row in shown["frontier-mnist"].table] == [
        ("nothing", 0, 0, 0, "70.5 ± 0.7"),
        ("weights, 4 bits up and down", 16_000, 16_000, 32_000, "79.5 ± 0.7"),
        ("weights, 1 bit up, 32 down", 4000, 124_000, 128_000, "81.0 ± 1.4"),
    ]
    figure = shown["frontier-mnist"].figure
    assert figure is not None
    points = figure().to_dict()["layer"][1]["data"]["values"]
    assert [row["bytes per learner and round, both ways"] for row in points] == [0, 32_000, 128_000]


def test_names_of_encodings() -> None:
    assert weights_name("bit", "int4", 2) == "weights, 1 bit up, 4 down, every 2"
    assert weights_name("float16", "float16") == "weights, 16 bits up and down"


def test_growth_shows_accuracy_and_bytes_by_number_of_learners() -> None:
    found = [
        (2, ALONE, [80.0, 82.0], 0, 0),
        (2, "fedavg", [85.0, 85.0], 500, 600),
        (200, ALONE, [80.0, 80.0], 0, 0),
        (200, "fedavg", [97.0, 98.0], 500, 600),
    ]
    shown = sections(
        "thesis-growth", [outcome({"learners": n, "row": row}, by, up, down) for n, row, by, up, down in found]
    )
    assert shown["growth"].table == [
        {"learners": 2, ALONE: "81.0 ± 1.4", "fedavg": "85.0 ± 0.0"},
        {"learners": 200, ALONE: "80.0 ± 0.0", "fedavg": "97.5 ± 0.7"},
    ]
    sent = {"fedavg, upload": 500, "fedavg, download": 600}
    assert shown["growth-bytes"].table == [{"learners": 2, **sent}, {"learners": 200, **sent}]
    figure = shown["growth"].figure
    assert figure is not None
    spec = figure().to_dict()
    points = [row for row in spec["data"]["values"] if row["method"] == "fedavg"]
    assert [row["high"] - row["low"] for row in points] == pytest.approx([0, 2**0.5])  # twice the deviation
    across = spec["layer"][0]["encoding"]["x"]
    assert across["scale"]["type"] == "log" and across["axis"]["values"] == [2, 200]


# --- observations, classes, asynchrony


def test_observations_compare_every_setting_with_the_published_one() -> None:
    """Differences 1 and 3 at iid: mean 2."""
    shown = sections(
        "thesis-observations",
        [
            outcome({"condition": "iid", "row": "as published"}, [80, 82], 7120, 7120),
            outcome({"condition": "iid", "row": "down 5"}, [81, 85], 7120, 21000),
            outcome({"condition": "alpha 0.3", "row": "down 5"}, [40, 42], 7120, 21000),
        ],
    )["observations"].table
    assert shown[0] == {
        "setting": "as published",
        "upload, bytes": 7120,
        "download, bytes": 7120,
        "iid": "81.0 ± 1.4",
    }
    assert shown[1]["iid, difference"].startswith("+2.0") and shown[1]["alpha 0.3"] == "41.0 ± 1.4"
    assert "alpha 0.3, difference" not in shown[1], "there is nothing to compare it with"


def test_classes_show_accuracy_and_bytes() -> None:
    shown = sections(
        "thesis-classes",
        [outcome({"condition": f"{c} classes", "row": "fedavg"}, [90.0 + c, 90.0 + c], 100 + c, 100) for c in (2, 5)],
    )
    assert (
        shown["classes"].table[0]["fedavg"].startswith("92.0") and shown["classes"].table[0]["classes"] == "2 classes"
    )
    assert [line["fedavg"] for line in shown["classes-bytes"].table] == [202, 205]


def test_asynchrony_shows_the_two_that_are_reached_apart() -> None:
    groups = {"reached": {"accuracy": {"mean": 90.04}}, "others (lenet5)": {"accuracy": {"mean": 75.0}}}
    same = outcome({"condition": "all but the same two offline", "row": "fedavg"}, [78, 78], groups=groups)
    other = outcome({"condition": "two of ten present", "row": "fedavg"}, [81, 81])
    shown = sections("thesis-asynchrony", [other, same])
    assert [line["presence"] for line in shown["asynchrony"].table] == [
        "two of ten present",
        "all but the same two offline",
    ]
    assert shown["same-two"].table == [
        {"learners": "the two that are reached", "fedavg": "90.0"},
        {"learners": "the eight that are not", "fedavg": "75.0"},
    ]
    assert "same-two" not in sections("thesis-asynchrony", [other])
