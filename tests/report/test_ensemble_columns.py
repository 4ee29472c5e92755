"""Accuracy of the ensemble and dependence of a watched layer, in a report and in tables."""

from __future__ import annotations

import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from consilience.presentation.tables import CAPTION, comparison_table, table_text
from consilience.report.runs import read_runs
from consilience.simulation.simulate import simulate

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
from tests.report_tools import ALL, cells_of, line, page_of, run_folder, shown, specs_of, values_of


def run_with_ensemble(path: Path, **changes: Any) -> Path:
    """A run with ensemble accuracy, accuracy of the device heads, and a watched layer."""
    where = product(range(3), range(2), range(2))
    more = ("accuracy_ensemble", 60.0, 10), ("accuracy_heads", 50.0, 10), ("dependence", 0.9, -0.1)
    lines = [
        line(
            r,
            s,
            w,
            10.0 * r if r else None,
            **{key: start + step * r + s * step / 5 if r else None for key, start, step in more},
        )
        for r, s, w in where
    ]
    folder = run_folder(path, lines, **changes)
    result = json.loads((folder / "result.json").read_text())
    told = {"ensemble": 81.25, "heads": 71.25, "dependence": 0.688}
    result |= {key: {"mean": mean, "std_seeds": None, "std_learners": 0.0} for key, mean in told.items()}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def column_of(page: str, name: str) -> list[str]:
    return [text for column, text in cells_of(page) if column == name]


def test_ensemble_and_dependence_have_curves_and_columns(tmp_path: Path) -> None:
    page = page_of(tmp_path, run_with_ensemble(tmp_path / "a"), run_folder(tmp_path / "b", method={"name": "fedavg"}))
    assert shown(page) == [*ALL[:3], "ensemble", "dependence", *ALL[3:]]
    assert "Ensemble accuracy over rounds" in page and "Distance correlation over rounds" in page
    rows = values_of(specs_of(page)["ensemble"])
    assert {(row["prediction"], row["round"], row["accuracy"]) for row in rows} == {
        ("ensemble", 1, 71.0),
        ("ensemble", 2, 81.0),
        ("own heads", 1, 61.0),
        ("own heads", 2, 71.0),
    }
    fell = {row["round"]: row["dependence"] for row in values_of(specs_of(page)["dependence"])}
    assert fell == pytest.approx({1: 0.79, 2: 0.69})
    assert [column_of(page, name) for name in ("ensemble", "own heads", "dcor")] == [
        ["81.2", "–"],
        ["71.2", "–"],
        ["0.69", "–"],
    ]
    assert "Dcor: distance correlation of the inputs and the output of the watched layer." in page


def test_page_without_ensemble_has_no_ensemble_sections(tmp_path: Path) -> None:
    page = page_of(tmp_path, run_folder(tmp_path / "a"))
    assert not {"ensemble", "dependence"} & set(shown(page))
    assert not [word for word in ("nsemble:", "own heads", "cor:") if word in page.partition("Reproduce these runs")[0]]


def test_ensemble_of_an_interrupted_run_is_read_from_its_metrics(tmp_path: Path) -> None:
    folder = run_with_ensemble(tmp_path / "a")
    (folder / "result.json").unlink()
    (run,) = read_runs([folder]).runs
    assert [run.summary[key]["mean"] for key in ("ensemble", "heads", "dependence")] == pytest.approx([81, 71, 0.69])
    assert column_of(page_of(tmp_path, folder), "ensemble") == ["81.0"]


def test_damaged_dependence_in_result_json_is_reported(tmp_path: Path) -> None:
    folder = run_with_ensemble(tmp_path / "a")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"dependence": {"mean": "much", "std_seeds": None}}))
    page = page_of(tmp_path, folder)
    assert "result.json is damaged: numbers are missing" in page and column_of(page, "dcor") == ["0.69"]


def test_comparison_table_has_ensemble_columns_and_fits_a_terminal(one_thread: None) -> None:
    small: dict[str, Any] = {"train": 60, "test": 40, "learners": 2, "rounds": 1, "seeds": 2, "workers": 0}
    asked = simulate(method="two-stage", watch="cut", **small).summary()
    plain = simulate(method="independent", **small).summary()
    text = table_text(comparison_table([asked, plain]))
    assert f" {asked['ensemble']['mean']:.1f} " in text and f" {asked['dependence']['mean']:.2f} " in text
    asked |= {"heads": {"mean": 54.32}, "bytes": {"up": 26.8e3, "down": 26.8e3}, "bytes_total": 29.9e6}
    table = comparison_table([asked, plain], width=80)
    text = table_text(table)
    assert " 54.3 " in text and text.count(" – ") == 3
    assert [word in text for word in ("heads", "dcor", "ensemble", "time")] == [True, True, True, False]
    assert "Dcor: distance correlation of the inputs and the output of the watched layer." in " ".join(text.split())
    Console(file=(narrow := io.StringIO()), width=80).print(table)
    assert CAPTION in " ".join(narrow.getvalue().split()), "or what is too wide was cut off"
    text = table_text(comparison_table([plain]))
    assert [word in text for word in ("heads", "dcor", "ensemble", "time")] == [False, False, False, True]
