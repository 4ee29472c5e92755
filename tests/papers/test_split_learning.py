"""The reproduction of split learning: its cells, its tables from outcomes made by hand, and a small run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consilience.papers import REPRODUCTIONS, Outcome, Scale
from consilience.papers.run import run_reproduction
from consilience.papers.thesis.published import TASKS

SPLIT = REPRODUCTIONS["thesis-split-learning"]


def test_cells_cut_lenet5_after_its_convolutions() -> None:
    cells = SPLIT.cells(Scale())
    assert len(cells) == 3 * 5 and {c.config.training.rounds for c in cells} == {100}
    assert {c.labels["learners"] for c in cells} == {2, 5, 10}
    cuts = {c.labels["row"]: c.config.method.settings for c in cells if c.config.method.name == "split-learning"}
    assert cuts == {
        "split-learning": {"cut": "pool"},
        "split-learning, private": {"cut": "pool", "device": "private"},
    }


def outcome(learners: int, row: str, mean: float, up: int, down: int) -> Outcome:
    summary: dict[str, Any] = {"accuracy": {"mean": mean, "std_seeds": 0.5}, "bytes": {"up": up, "down": down}}
    return Outcome({"learners": learners, "row": row}, summary | {"rounds": 100, "seeds": 5}, Path("nowhere"))


def test_tables_count_the_bytes_of_a_learner_and_of_all() -> None:
    """With 10 learners: 1,500 bytes x 10 learners x 100 rounds = 1.5 MB."""
    found = [
        outcome(2, "fedavg", 90, 3000, 2000),
        outcome(10, "fedavg", 80, 3000, 2000),
        outcome(2, "split-learning", 92, 5000, 4000),
        outcome(10, "split-learning", 91, 1000, 500),
    ]
    shown = {section.name: section for section in SPLIT.sections(found)}
    assert shown["split-learning"].table == [
        {"method": "fedavg", "N=2": "90.0 ± 0.5", "N=10": "80.0 ± 0.5"},
        {"method": "split-learning", "N=2": "92.0 ± 0.5", "N=10": "91.0 ± 0.5"},
    ]
    assert shown["split-learning-bytes"].table[1] == {"method": "split-learning", "N=2": 9000, "N=10": 1500}
    assert shown["split-learning-total"].table[1] == {"method": "split-learning", "N=2": 1.8, "N=10": 1.5}
    figure = shown["split-learning"].figure
    assert figure is not None and len(figure().to_dict()["data"]["values"]) == 4


def test_small_run_shows_that_messages_shrink_with_a_learners_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "MNIST", {"data": "digits", "model": "lenet5", "train": 100, "rounds": 2})
    only = [("row", "split-learning, private"), ("row", "representation-sharing"), ("learners", "2"), ("learners", "5")]
    shown = run_reproduction(SPLIT, Scale(seeds=1, only=only), tmp_path).sections
    sent = {line["method"]: line for line in next(s.table for s in shown if s.name == "split-learning-bytes")}
    private, shared = sent["split-learning, private"], sent["representation-sharing"]
    assert private["N=2"] > 2 * private["N=5"] > 2 * 20 * (120 + 120 + 1) * 4  # fifty images, and twenty
    assert shared["N=2"] == shared["N=5"]
