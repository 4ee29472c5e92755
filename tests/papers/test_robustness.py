"""The reproduction of means that resist: its cells, its tables, and names of cells that were published before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from consilience.papers import REPRODUCTIONS, Scale
from consilience.papers.finished_cells import FINISHED
from consilience.papers.robustness import MEANS, ROBUSTNESS
from consilience.papers.run import run_reproduction

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_every_cell_is_a_valid_run_and_has_its_own_name() -> None:
    cells = ROBUSTNESS.cells(Scale())
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.labels["attackers"] for cell in cells} == {"", "10%", "20%", "30%", "40%"}
    for cell in cells:
        (group,) = cell.config.groups.values()
        share = len(group.numbers("attackers", 10)) / 10
        assert cell.labels["attackers"] in ("", f"{share:.0%}")


def test_no_cell_attacks_what_its_method_does_not_share() -> None:
    swapped = {cell.labels["method"] for cell in ROBUSTNESS.cells(Scale()) if "swap" in cell.labels["attack"]}
    assert swapped == {"consilience", "representation-sharing"}


def test_quick_version_has_all_means_in_few_cells() -> None:
    cells = ROBUSTNESS.cells(Scale(quick=True))
    assert {cell.labels["mean"] for cell in cells} == set(MEANS) and len(cells) <= 32
    assert {cell.labels["data"] for cell in cells} == {"digits"}


def test_saved_cells_are_shown_with_the_accuracy_of_honest_learners(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "robustness" / FINISHED, tmp_path)
    found = run_reproduction(ROBUSTNESS, Scale(), tmp_path, saved_only=True)
    saved = [json.loads(line) for line in (tmp_path / FINISHED).read_text().splitlines()]
    tables = [line for section in found.sections for line in section.table]
    shown = [value for line in tables for key, value in line.items() if key in MEANS]
    assert len(shown) == len(saved)
    one = next(line for line in saved if line["labels"]["attack"] == "sign-flip")
    honest = next(group for name, group in one["summary"]["groups"].items() if name != "attackers")["accuracy"]
    assert f"{honest['mean']:.1f} ± {honest['std_seeds']:.1f}" in shown


def test_cells_published_before_keep_their_names() -> None:
    lines = (RESULTS / "thesis-heterogeneity" / FINISHED).read_text().splitlines()
    before = {json.loads(line)["name"] for line in lines}
    assert before <= {cell.name for cell in REPRODUCTIONS["thesis-heterogeneity"].cells(Scale())}
