"""The reproduction of cluster sharing: its cells, and its table from outcomes made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.methods import settings_of
from consilience.papers import REPRODUCTIONS, Outcome, Scale

CLUSTERS = REPRODUCTIONS["cluster-sharing"]


def test_every_row_trains_equally_long_and_is_measured_by_the_same_probe() -> None:
    cells = CLUSTERS.cells(Scale())
    assert len(cells) == 2 * 5
    found = {(c.config.training.rounds, c.config.training.total_epochs, c.config.evaluation.probe) for c in cells}
    assert found == {(10, 60, "auto")} and {c.config.model.name for c in cells} == {"encoder18"}
    control = next(c for c in cells if c.labels["row"] == "cluster-sharing, kd = 0")
    assert control.config.method.settings == {"kd": 0.0} and settings_of("cluster-sharing")["kd"] > 0
    assert all(c.config.data.source == "digits" for c in CLUSTERS.cells(Scale(quick=True)))


def outcome(row: str, by_seed: list[float], sent: int) -> Outcome:
    reached: dict[str, Any] = {"mean": sum(by_seed) / len(by_seed), "std_seeds": 1.0, "by_seed": by_seed}
    summary = {"accuracy": reached, "bytes": {"up": sent, "down": sent}, "data": "digits", "model": "mlp"}
    about = {"learners": 10, "rounds": 10, "seeds": len(by_seed)}
    return Outcome({"partition": "iid", "row": row}, summary | about, Path("nowhere"))


def test_differences_are_paired_by_seed() -> None:
    """To independent +1 and +3, to the control -1 and 0."""
    rows = [
        outcome("independent", [80, 82], 0),
        outcome("cluster-sharing, kd = 0", [82, 85], 50),
        outcome("cluster-sharing", [81, 85], 50),
    ]
    (section,) = CLUSTERS.sections(rows)
    alone, _, shared = section.table
    assert alone["difference to independent"] is None and alone["bytes"] == 0
    assert shared["difference to independent"] == "+2.0 (+1.0 and +3.0 in two seeds)"
    assert shared["difference to cluster-sharing, kd = 0"] == "-0.5 (-1.0 and +0.0 in two seeds)"
    assert shared["bytes"] == 100 and section.name == "clusters-iid"
