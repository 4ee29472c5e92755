"""The reproduction of sharing under differential privacy: its cells, and what its tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.papers.cells import Outcome, Scale
from consilience.papers.privacy import MECHANISMS, PRIVACY, smallest_that_pays
from consilience.papers.run import run_reproduction


def outcome(mechanism: str, epsilon: str, *by_seed: float) -> Outcome:
    accuracy = {"mean": sum(by_seed) / len(by_seed), "by_seed": list(by_seed)}
    return Outcome({"mechanism": mechanism, "epsilon": epsilon, "size": "x"}, {"accuracy": accuracy}, Path())


def test_every_cell_is_a_valid_run_with_its_budget() -> None:
    cells = PRIVACY.cells(Scale())
    assert len({cell.name for cell in cells}) == len(cells) == 2 * (2 + 2 * 5)
    for cell in cells:
        asked: Any = cell.config.privacy
        assert asked.private == (cell.labels["mechanism"] if cell.labels["epsilon"] not in ("", "none") else "none")
        assert asked.delta == 1e-5
        assert cell.config.data.train == {"120 images": 1200, "6,000 images": 60_000}[cell.labels["size"]]


def test_the_smallest_epsilon_is_one_that_pays_with_every_seed() -> None:
    alone = outcome("alone", "", 70, 72)
    found = [outcome("upload", "1", 60, 60), outcome("upload", "2", 90, 71), outcome("upload", "8", 71, 73)]
    assert "is 8 (71.0 alone)" in smallest_that_pays("upload", [alone, *found], alone)
    assert "none of the budgets" in smallest_that_pays("upload", [alone, *found[:2]], alone)
    assert "none of the budgets" in smallest_that_pays("training", [alone, *found], alone)


def test_quick_version_says_for_both_mechanisms_whether_sharing_pays(tmp_path: Path) -> None:
    only = [("mechanism", "alone"), ("mechanism", "upload"), ("epsilon", ""), ("epsilon", "4")]
    found = run_reproduction(PRIVACY, Scale(quick=True, only=only), tmp_path)
    (section,) = found.sections
    assert [line["mechanism"] for line in section.table] == ["alone", "upload"]
    assert all(f"{name}: " in section.text for name in MECHANISMS)
