"""The beginning of a report: headline, answers, the chart of costs, and who gains and who loses."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
from tests.report_tools import cells_of, page_of, run_with_gain, shown, specs_of, values_of


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [
        run_with_gain(tmp_path / "alone", "independent", 0.0, 0.0),
        run_with_gain(tmp_path / "fedavg", "fedavg", -5.0, 5e6),
        run_with_gain(tmp_path / "ours", "consilience", 3.0, 5e5),
    ]


def test_page_begins_with_headline_answers_cost_and_gains(tmp_path: Path, folders: list[Path]) -> None:
    page = page_of(tmp_path, *folders)
    assert "<h1>independent, fedavg and consilience compared on digits</h1>" in page
    assert (
        '<p class="lead">With 2 learners on digits, the default method (consilience) reaches 21.5&nbsp;% for '
        "500&nbsp;kB; FedAvg 21.5&nbsp;% for 5&nbsp;MB; learning alone 21.5&nbsp;%. Own answers, on data like each "
        "learner&#x27;s own: "
    ) in page
    places = [
        page.index(text)
        for text in ("Did it help?", "Whom did it help?", "At what cost?", "Accuracy against bytes</h3>")
    ]
    assert places == sorted(places) and places[-1] < page.index("Summary</h3>")
    assert "helps 2 of 4 learners over 2 seeds by more than a point and harms none, 2 are about the same" in page
    assert "own data: fedavg -2.5&nbsp;points on average (2 of 4 learners over 2 seeds lose more than a point)" in page
    assert shown(page)[:2] == ["cost", "gains"]
    gained = {(row["method"], row["learner"], row["seed"]): row["gain"] for row in values_of(specs_of(page)["gains"])
              if "learner" in row}  # fmt: skip
    assert gained == {
        (m, w, s): g * w for (m, g), w, s in product((("fedavg", -5.0), ("consilience", 3.0)), range(2), range(2))
    }


def test_table_has_gains_and_marks_the_best_row(tmp_path: Path, folders: list[Path]) -> None:
    page = page_of(tmp_path, *folders)
    cells = cells_of(page)
    assert [text for name, text in cells if name == "helped"] == ["–", "0/4", "2/4"]
    assert [text for name, text in cells if name == "harmed"] == ["–", "2/4", "0/4"]
    assert page.count('<b class="badge">most accurate</b>') == 1
    single = page_of(tmp_path, folders[1])
    assert "helped</th>" not in single and '<b class="badge">' not in single
    assert "Not known whether it helps" in single


def test_gains_are_read_from_metrics_whatever_the_result_says(tmp_path: Path, folders: list[Path]) -> None:
    result = json.loads((folders[2] / "result.json").read_text())
    result["accuracy_own"] |= {"by_learner": [["damaged"]]}
    (folders[2] / "result.json").write_text(json.dumps(result | {"seed": "x"}))
    assert "helps 2 of 4 learners" in page_of(tmp_path, *folders)


def test_method_has_one_color_in_every_report(tmp_path: Path, folders: list[Path]) -> None:
    both, one = specs_of(page_of(tmp_path, *folders)), specs_of(page_of(tmp_path, folders[1]))

    def place(spec: object, method: str) -> int:
        text = json.dumps(spec)
        found = [json.loads(part.partition("]")[0] + "]") for part in text.split('"domain": ')[1:]]
        (where,) = {domain.index(method) for domain in found if method in domain}
        return int(where)

    assert place(both["cost"], "fedavg") == place(both["accuracy"], "fedavg") == place(one["accuracy"], "fedavg")
    assert place(both["cost"], "consilience") == place(both["losses"], "consilience") == 0
