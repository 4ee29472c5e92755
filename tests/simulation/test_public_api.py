"""`compare`, `sweep` and `write_report` from Python give the same as the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consilience
from consilience import Dataset, Settings, load
from consilience.errors import ConfigurationError
from consilience.simulation.compare import add_control

SMALL: Settings = {"learners": 2, "rounds": 1, "train": 40, "test": 20, "workers": 0}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", train=40, test=20)


def test_compare_in_memory_returns_results_summaries_and_a_table() -> None:
    seen: list[str] = []
    found = consilience.compare(
        methods=["independent", "fedavg:start=different"], on_summary=lambda s: seen.append(s["method"]), **SMALL
    )
    alone = consilience.simulate(method="fedavg:start=different", **SMALL)
    assert found.finished and found.folder is None and seen == ["independent", "independent", "fedavg"]
    assert np.array_equal(found.results["fedavg:start=different"].accuracy, alone.accuracy)
    assert [summary["finished"] for summary in found.summaries] == [True, True, True]
    assert "independent" in found.table() and "fedavg" in found.table()


def test_summaries_have_gains_wherever_learning_alone_is_listed() -> None:
    seen: list[tuple[str, bool]] = []
    methods = ["centralized", "fedavg", "independent", "fedproto"]
    known = {"helped", "harmed", "gain_own", "control"}
    consilience.compare(methods=methods, on_summary=lambda s: seen.append((s["method"], known <= set(s))), **SMALL)
    alone, control = ("independent", False), ("independent", False)
    assert seen == [("centralized", False), ("fedavg", True), alone, control, ("fedproto", True)]


def test_control_runs_beside_learning_alone_unless_it_is_not_wanted() -> None:
    pair = ["fedavg", "independent"]
    settings: Settings = {**SMALL, "batch_size": 8}
    with_control = consilience.compare(methods=pair, **settings)
    without = consilience.compare(methods=pair, control=False, **settings)
    assert with_control.methods == ("fedavg", "independent", "independent:batch_order=1")
    assert without.methods == ("fedavg", "independent") and "control" not in without.summaries[0]
    assert with_control.summaries[0]["helped"] == without.summaries[0]["helped"]
    alone, control = (with_control.results[name] for name in with_control.methods[1:])
    assert np.array_equal(alone.history.last("accuracy"), without.results["independent"].accuracy)
    assert not np.array_equal(alone.history["loss.cross_entropy"], control.history["loss.cross_entropy"])
    for names in ("independent", "centralized independent", "fedavg", "independent:batch_order=2 fedavg"):
        methods = names.split()
        assert add_control(methods) == methods
    chosen = add_control(["independent:own_head=true", "independent", "fedavg"])
    assert chosen[1:3] == ["independent", "independent:batch_order=1"]


def test_baseline_is_one_of_the_methods_and_stays_with_the_folder(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    methods = ["fedproto", "fedavg:every=2", "fedprox"]
    found = consilience.compare(
        methods=methods,
        against="fedavg",  # the only fedavg
        out=tmp_path / "c",
        on_summary=lambda s: seen.append((s["method"], "against" in s)),
        **SMALL | {"seeds": 2},
    )
    assert found.against == "fedavg:every=2" and seen == [("fedproto", True), ("fedavg", False), ("fedprox", True)]
    first, baseline, _ = found.summaries
    mean = first["accuracy"]["mean"] - baseline["accuracy"]["mean"]
    assert first["against"]["accuracy"]["mean"] == pytest.approx(mean)
    assert "Difference to fedavg every=2" in found.table() and "Difference to fedavg" in found._repr_html_()
    again = consilience.compare(resume=tmp_path / "c")
    assert again.summaries == found.summaries
    page = consilience.write_report(tmp_path / "c", tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Difference to fedavg every=2 with the same seeds (2 seeds)" in page


def test_baseline_that_is_not_among_the_methods_is_refused_before_anything_runs(tmp_path: Path) -> None:
    said = "against is 'fedavgg', which is not among the methods that are compared: independent, fedprox; name one"
    with pytest.raises(ConfigurationError, match=said):
        consilience.compare(methods=["independent", "fedprox"], against="fedavgg", out=tmp_path / "c", **SMALL)
    assert not (tmp_path / "c").exists()
    twice = ["fedavg:every=1", "fedavg:every=2"]
    with pytest.raises(ConfigurationError, match="2 of the methods are: fedavg:every=1, fedavg:every=2; name one with"):
        consilience.compare(methods=twice, against="fedavg", **SMALL)


def test_compare_in_a_folder_is_resumed(tmp_path: Path, digits: Dataset) -> None:
    first = consilience.compare(methods=["independent"], data=digits, out=tmp_path / "c", **SMALL)
    again = consilience.compare(resume=tmp_path / "c", data=digits)
    assert again.summaries[0]["accuracy"] == first.summaries[0]["accuracy"] and not again.results
    with pytest.raises(ConfigurationError, match="resume takes its settings from the comparison's folder"):
        consilience.compare(resume=tmp_path / "c", methods=["fedavg"])
    with pytest.raises(ConfigurationError, match="no method to compare"):
        consilience.compare(methods=[], **SMALL)


def test_sweep_in_memory_equals_the_one_in_a_folder(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"method.kd": [0, 1], "batch_size": [16, 32]}
    found = consilience.sweep(method="fedproto", grid=grid, **SMALL)
    kept = consilience.sweep(method="fedproto", grid=grid, out=tmp_path / "s", **SMALL)
    assert found.finished and [row["set"] for row in found.rows] == list(found.settings)
    assert [row["accuracy"] for row in found.rows] == [row["accuracy"] for row in kept.rows]
    assert found.best is not None and found.best["set"] in found.settings
    assert "method.kd" in found.table() and (tmp_path / "s" / "sweep.csv").is_file()
    again = consilience.sweep(resume=tmp_path / "s")
    assert again.rows == kept.rows
    for bad, said in (({}, "nothing to sweep over"), ({"seed": [0, 1]}, "seed is not"), ({"lr": [1, 1]}, "one value")):
        with pytest.raises(ConfigurationError, match=said):
            consilience.sweep(method="fedproto", grid=bad, **SMALL)


def test_write_report_writes_a_page_of_a_comparison(tmp_path: Path) -> None:
    consilience.compare(methods=["independent"], out=tmp_path / "c", **SMALL)
    page = consilience.write_report(tmp_path / "c", tmp_path / "page.html")
    assert page == tmp_path / "page.html" and "independent" in page.read_text(encoding="utf-8")
