"""Results in a notebook: short reprs, HTML, data frames and charts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import Comparison, Config, Result, Sweep, compare, load, simulate, sweep
from consilience.config.config import make_config
from consilience.errors import ConfigurationError, UnknownName

SMALL = {"learners": 2, "rounds": 2, "train": 40, "test": 20, "workers": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "one"


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return simulate(method="fedavg", seeds=2, out=folder, **SMALL)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(methods=["independent", "fedavg:every=2"], control=False, **SMALL)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Sweep:
    return sweep(method="fedproto", grid={"method.kd": [0, 1]}, **SMALL)  # type: ignore[arg-type]


def points(chart: Any) -> list[dict[str, Any]]:
    """The rows that a chart draws."""
    drawn = chart.to_dict()
    parts = [part for part in (drawn, *drawn.get("layer", [])) if "data" in part]
    return [row for row in parts[0]["data"]["values"] if "round" in row]


def test_reprs_are_one_short_line(result: Result, comparison: Comparison, found: Sweep) -> None:
    data = load("digits")
    for thing in (result, result.history, result.config, comparison, found, data):
        assert "\n" not in repr(thing) and len(repr(thing)) < 500, repr(thing)
    mean = f"{result.accuracy.mean():.1f} %"
    assert repr(result) == f"Result(fedavg on digits: accuracy {mean}; 2 learners, 2 rounds, 2 seeds)"
    assert repr(data) == "Dataset('digits': 1000 training and 797 test samples of the shape (1, 8, 8), 10 classes)"
    assert repr(Config()) == "Config()" and repr(make_config({"rounds": 3, "lr": 0.5})) == "Config(rounds=3, lr=0.5)"
    assert repr(comparison).startswith("Comparison(2 of 2 methods: independent ")
    assert repr(found).startswith("Sweep(2 of 2 settings finished, best {'method.kd': ")


def test_one_of_a_kind_is_named_in_the_singular() -> None:
    one = repr(simulate(method="independent", learners=1, rounds=1, train=40, test=20, workers=0))
    assert one.endswith("1 learner, 1 round, 1 seed)")


def test_history_has_the_keys_of_a_mapping(result: Result) -> None:
    assert "accuracy" in result.history and set(result.history) == set(result.history.keys())
    assert dict(result.history)["accuracy"].shape == (2, 2, 2)
    with pytest.raises(UnknownName, match="Did you mean 'accuracy'"):
        result.history["acuracy"]


def test_html_has_the_numbers_of_the_table_and_is_escaped(comparison: Comparison, found: Sweep, result: Result) -> None:
    page = comparison._repr_html_()
    assert page.count("<tr>") == 3 and ">fedavg every=2" in page
    assert f"{comparison.summaries[0]['accuracy']['mean']:.1f}" in page
    assert "<b>" in found._repr_html_() and "method.kd" in found._repr_html_()
    assert "accuracy %" in result._repr_html_()
    unsafe = Comparison(("a",), ({**comparison.summaries[0], "method": "<script>"},))
    assert "<script>" not in unsafe._repr_html_()


def test_data_frame_has_the_lines_of_the_run_folder(result: Result, folder: Path) -> None:
    frame = result.to_pandas()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(frame) == len(lines) == 3 * 2 * 2
    for row, line in zip(frame.to_dict("records"), lines, strict=True):
        assert (row["round"], row["seed"], row["learner"]) == (line["round"], line["seed"], line["learner"])
        assert row["bytes.up"] == line["bytes"]["up"]
        assert (None if np.isnan(row["accuracy"]) else row["accuracy"]) == line["accuracy"]


def test_data_frames_of_methods_and_settings(comparison: Comparison, found: Sweep) -> None:
    methods, settings = comparison.to_pandas(), found.to_pandas()
    assert list(methods["method"]) == ["independent", "fedavg"] and methods["settings.every"][1] == 2
    assert methods["accuracy.mean"][1] == comparison.summaries[1]["accuracy"]["mean"]
    assert list(settings["method.kd"]) == [0, 1] and "bytes.up" in settings


def test_without_pandas_the_error_says_what_to_install(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match="to_pandas needs pandas: pip install pandas"):
        result.to_pandas()


def test_plots_have_the_mean_of_each_round(result: Result, comparison: Comparison) -> None:
    values = points(result.plot())
    assert [row["accuracy"] for row in values] == pytest.approx(list(result.history["accuracy"].mean(axis=(1, 2))))
    assert values[0]["low"] < values[0]["accuracy"] < values[0]["high"]
    losses = points(comparison.plot("loss.cross_entropy"))
    assert all(row["loss cross_entropy"] > 0 for row in losses)
    assert {row["method"] for row in losses} == {"independent", "fedavg:every=2"}
    with pytest.raises(UnknownName, match="unknown metric"):
        result.plot("acc")


def test_a_sweep_has_a_line_per_setting(found: Sweep, tmp_path: Path) -> None:
    drawn = points(found.plot("loss.cross_entropy"))
    assert {row["method"] for row in drawn} == {"method.kd=0", "method.kd=1"} and len(drawn) == 2 * 2
    settings: dict[str, Any] = {"method": "fedproto", "grid": {"lr": [0.1, 0.2], "width": [4, 8]}, **SMALL}
    apart = sweep(out=tmp_path / "apart", **settings)  # a run for each width
    names = {f"lr={lr} width={width}" for lr in (0.1, 0.2) for width in (4, 8)}
    assert {row["method"] for row in points(apart.plot())} == names
    with pytest.raises(ConfigurationError, match="every run was finished before"):
        sweep(resume=tmp_path / "apart").plot()


def test_variants_have_a_line_each() -> None:
    variants = [{"method.kd": 0.0}, {"method.kd": 1.0}]
    both = simulate(method="fedproto", variants=variants, **SMALL)  # type: ignore[arg-type]
    drawn = json.dumps(both.plot().to_dict())
    assert "method.kd=0.0" in drawn and "method.kd=1.0" in drawn
    assert list(both.to_pandas()["variant"].unique()) == [0, 1]
