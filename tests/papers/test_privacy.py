"""The reproduction of sharing under differential privacy: its cells, and what its tables say."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from consilience.papers.cells import Outcome, Scale
from consilience.papers.privacy import MECHANISMS, PRIVACY, smallest_that_pays
from consilience.papers.run import run_reproduction


def outcome(mechanism: str, epsilon: str, *by_seed: float) -> Outcome:
    accuracy = {"mean": fmean(by_seed), "std_seeds": stdev(by_seed), "by_seed": list(by_seed)}
    run = {"accuracy": accuracy, "seed": 0, "seeds": len(by_seed), "learners": 2, "rounds": 3, "model": "mlp"}
    return Outcome({"mechanism": mechanism, "epsilon": epsilon, "size": "9 samples"}, run, Path())


def test_every_cell_is_a_valid_run_with_its_budget() -> None:
    cells = PRIVACY.cells(Scale())
    assert len({cell.name for cell in cells}) == len(cells) == 2 * (3 + 2 * 5)
    for cell in cells:
        asked: Any = cell.config.privacy
        noised = cell.labels["epsilon"] not in ("", "none")
        pulled = cell.labels["mechanism"] == "alone, logits pulled to 0"
        assert asked.private == (cell.labels["mechanism"] if noised else "upload" if pulled else "none")
        assert asked.delta == 1e-5
        assert cell.config.data.train == {"120 images": 1200, "6,000 images": 60_000}[cell.labels["size"]]


def test_the_smallest_epsilon_is_one_whose_interval_is_above_learning_alone() -> None:
    alone, unclear = outcome("alone", "", 70, 72, 71), outcome("upload", "2", 90, 71, 71)
    worse, better = outcome("upload", "1", 60, 62, 61), outcome("upload", "8", 71, 73, 72.1)
    said = smallest_that_pays("upload", [alone, worse, unclear, better, outcome("upload", "none", 99, 99, 99)])
    assert "than alone is 8 (+1.0 points over the best of 1 way of learning alone, 95 % interval +0.9 to" in said
    assert "none of the budgets" in smallest_that_pays("upload", [alone, worse, unclear])
    assert "none of the budgets" in smallest_that_pays("training", [alone, better])
    control = outcome("alone, logits pulled to 0", "", 71, 73, 72)
    assert "none of the budgets" in smallest_that_pays("upload", [alone, control, better]), "the gain needs no partner"
    assert smallest_that_pays("upload", [better]) == "", "there is nothing to compare with"


def test_tables_compare_each_budget_with_both_ways_of_learning_alone() -> None:
    control = outcome("alone, self-distillation", "", 71, 73, 72)
    found = [outcome("alone", "", 70, 72, 71), control, outcome("upload", "1", 60, 62, 61)]
    accuracy, above = PRIVACY.sections([*found, outcome("upload", "none", 80, 81, 82)])
    assert [line["mechanism"] for line in accuracy.table] == ["alone", "alone, self-distillation", "upload"]
    assert accuracy.table[-1] == {"mechanism": "upload", "epsilon 1": "61.0 ± 1.0", "no noise": "81.0 ± 1.0"}
    assert [line["epsilon 1"] for line in above.table] == ["-10.0 (-10.0 to -10.0)", "-11.0 (-11.0 to -11.0)"]
    assert [line["compared with"] for line in above.table] == ["alone", "alone, self-distillation"]


def test_quick_version_says_for_both_mechanisms_whether_sharing_pays(tmp_path: Path) -> None:
    only = [("mechanism", "alone"), ("mechanism", "upload"), ("epsilon", ""), ("epsilon", "4")]
    found = run_reproduction(PRIVACY, Scale(quick=True, only=only), tmp_path)
    section, above = found.sections
    assert [line["mechanism"] for line in section.table] == ["alone", "upload"]
    assert all(f"{name}: " in above.text for name in MECHANISMS)
    assert above.table[0]["epsilon 4"].endswith("(one seed)")
