"""The report page: its text and charts, and that it is self-contained."""

from __future__ import annotations

import json
import re
import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from consilience.errors import CheckpointError, ConfigurationError, StorageError
from consilience.papers import Cell, Reproduction, ResultSection, Scale
from consilience.papers.run import run_reproduction
from consilience.presentation import charts
from consilience.report.metrics import RunMetrics
from consilience.report.page import Section, write_page, write_report
from consilience.report.runs import read_runs
from consilience.simulation.compare import plan_comparison
from consilience.simulation.records.run_lock import lock_folder
from consilience.simulation.sweep import sweep

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
from tests.report_tools import ALL, TINY, cells_of, line, page_of, run_folder, settings, shown, specs_of, values_of

# -- reading -----------------------------------------------------------------------------------------------------------


def test_curves_are_means_over_learners_and_seeds_with_a_band_of_seeds(tmp_path: Path) -> None:
    (run,) = read_runs([run_folder(tmp_path / "a")]).runs
    first, last = run.metrics.curve("accuracy")
    assert first["accuracy"] == 11.5 and last["accuracy"] == 21.5 and last["round"] == 2
    assert last["high"] - last["accuracy"] == pytest.approx(2**0.5)  # means of seeds are 20.5 and 22.5
    assert run.metrics.cumulative_bytes() == {0: 20.0, 1: 320.0, 2: 620.0}  # sum over two learners, mean over seeds
    assert run.metrics.final == {(0, 0): 20.0, (0, 1): 21.0, (1, 0): 22.0, (1, 1): 23.0}


def test_band_is_over_learners_for_one_seed_and_absent_for_one_learner() -> None:
    metrics = RunMetrics()
    metrics.add(1, 0, 0, {"accuracy": 1.0})
    assert metrics.curve("accuracy") == [{"round": 1, "accuracy": 1.0, "low": None, "high": None}]
    metrics.add(1, 0, 1, {"accuracy": 3.0})
    metrics.add(1, 0, 1, {"accuracy": 99.0})  # a repeated line is ignored
    assert metrics.curve("accuracy") == [{"round": 1, "accuracy": 2.0, "low": 1.0, "high": 3.0}]


def test_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a run, comparison, sweep or reproduction: it has no config"):
        write_report([tmp_path], tmp_path / "report.html", None)
    with pytest.raises(ConfigurationError, match="name at least one"):
        write_report([], tmp_path / "report.html", None)
    (tmp_path / "comparison.toml").write_text('methods = ["fedavg"]\n[config]\n')
    with pytest.raises(CheckpointError, match="has no run yet; resume with: consilience compare --resume"):
        write_report([tmp_path], tmp_path / "report.html", None)
    assert not (tmp_path / "report.html").exists()


# -- content of the page -----------------------------------------------------------------------------------------------


def test_finished_run_has_all_sections_and_no_notes(tmp_path: Path) -> None:
    page = page_of(tmp_path, run_folder(tmp_path / "a", method={"name": "consilience"}))
    assert shown(page) == ALL
    assert 'role="note"' not in page
    cells = cells_of(page)
    assert cells[:4] == [
        ("accuracy %", "21.5 ± 1.4"),
        ("total", "640 B"),
        ("own accuracy %", "21.5"),
        ("spread across learners", "0.5"),
    ]
    assert cells[4:7] == [("upload per round", "100 B"), ("download per round", "50 B"), ("time", "3.0 s")]
    assert "By group of learners" in page and "skeptics" in page
    assert "learners differ in p(y): case 7c of the nine kinds of heterogeneity" in page
    assert "name = &quot;consilience&quot;" in page  # the settings to reproduce it
    assert "consilience report" in page
    specs = specs_of(page)
    assert {row["samples"] for row in values_of(specs["partition"])} == {7}  # seed 9 sorts before seed 10
    assert [row["bytes"] for row in values_of(specs["bytes"])] == [320.0, 620.0]
    assert {row["accuracy"] for row in values_of(specs["learners"])} == {21.0, 22.0}
    assert all(row["high"] in (12.91, 22.91) for row in values_of(specs["accuracy"]))  # four significant digits


def test_runs_are_grouped_by_task(tmp_path: Path) -> None:
    a = run_folder(tmp_path / "a", method={"name": "fedavg"})
    b = run_folder(tmp_path / "b", method={"name": "fedavg"})
    c = run_folder(tmp_path / "c", partition="dirichlet(0.3)")
    page = page_of(tmp_path, a, b, c, a)
    tasks = [
        f"digits, mlp, 2 learners, {partition}: {runs}, 2 rounds, 2 seeds"
        for partition, runs in (("iid", "2 runs"), ("dirichlet(0.3)", "1 run"))
    ]
    assert re.findall(r"<h2>([^<]*)</h2>", page) == tasks
    assert shown(page)[:7] == [f"task-1-{name}" for name in ALL] and len(shown(page)) == 14
    names = {row["method"] for row in values_of(specs_of(page)["task-1-accuracy"])}
    assert names == {f"fedavg ({a})", f"fedavg ({b})"}


def test_page_states_that_no_round_is_tested_yet(tmp_path: Path) -> None:
    lines = [line(r, s, w, None) for r, s, w in product(range(3), range(2), range(2))]
    page = page_of(tmp_path, run_folder(tmp_path / "a", lines))
    assert "No round has been tested yet." in page and "accuracy" not in shown(page)


def test_page_of_many_runs_shows_the_best_and_states_so(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / f"r{i}", method={"name": "fedprox", "prox": i + 1}) for i in range(13)]
    page = page_of(tmp_path, *folders)
    assert "Of 13 runs the best 12 are shown." in page and "13 runs of fedprox" in page
    assert "prox=1<" in page and page.count("<tr") == 1 + 13 + 1 + 13


def test_confusion_matrix_has_the_names_of_classes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    result = json.loads((folder / "result.json").read_text())
    matrix = [[3 if i == j else 1 for j in range(10)] for i in range(10)]
    (folder / "result.json").write_text(json.dumps(result | {"confusion": matrix}))
    about = json.loads((folder / "data.json").read_text())
    about["data"]["labels"] = [f"kind {number}" for number in range(10)]
    (folder / "data.json").write_text(json.dumps(about))
    charted = specs_of(page_of(tmp_path, folder)).values()
    cells = [row for spec in charted for row in values_of(spec) if "predicted" in row]
    assert len(cells) == 100 and cells[1] == {"class": "kind 0", "predicted": "kind 1", "share": 8.3}


# -- missing and damaged files -----------------------------------------------------------------------------------------


def test_interrupted_run_shows_its_finished_rounds(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", rounds=5)
    (folder / "result.json").unlink()
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(text[:12]) + text[12][:30])  # rounds 0 to 2, and a truncated line
    page = page_of(tmp_path, folder)
    assert f"2 of 5 rounds are finished; resume with: consilience run --resume {folder}" in page
    with lock_folder(folder):
        page = page_of(tmp_path, folder)
    assert "2 of 5 rounds are finished; it is running (process " in page and "resume with" not in page
    assert "1 damaged line left out" in page and "(unfinished)" in page
    assert ">21.5 ± 1.4<" in page and ">620 B<" in page
    assert shown(page) == ALL[:-1]  # its time is not known


def test_run_with_all_rounds_but_damaged_result_counts_as_finished(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    (folder / "result.json").write_text('{"finished": true}')
    page = page_of(tmp_path, folder)
    assert "result.json is damaged: numbers are missing. The summary is computed from its metrics." in page
    assert "(unfinished)" not in page and ">21.5 ± 1.4<" in page


@pytest.mark.parametrize("file", ["config.toml", "data.json", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00\xfe", b"[]", b"{}", b'{"finished": 1, "variants": 3}', b"[[["])
def test_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path, file: str, content: bytes) -> None:
    folder = run_folder(tmp_path / "a")
    (folder / file).write_bytes(content)
    page = page_of(tmp_path, folder)
    assert shown(page)
    if (file, content) != ("config.toml", b""):  # an empty configuration file is valid
        assert re.search(rf'role="note">[^<]*{re.escape(file)}', page)


def test_missing_metrics_lines_are_counted(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(text[:3] + text[5:]))
    assert "2 lines missing" in page_of(tmp_path, folder)


def test_invalid_metrics_lines_are_left_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        for wild in ({"round": 10**15}, {"seed": "x"}, {"variant": 3}, {"accuracy": 10**400}, {"learner": -1}):
            file.write(f"{json.dumps(line(1, 0, 0, 1.0) | wild)}\n")
    assert "5 damaged lines left out" in page_of(tmp_path, folder)


# -- comparisons and sweeps --------------------------------------------------------------------------------------------


def test_unfinished_comparison_is_reported(tmp_path: Path, one_thread: None) -> None:
    names = ["independent", "representation-sharing", "fedavg"]
    plan = plan_comparison(settings(**TINY), names, tmp_path / "c")
    for _ in zip(plan.run(), names[:2], strict=False):
        pass
    shutil.rmtree(tmp_path / "c" / "fedavg", ignore_errors=True)
    page = page_of(tmp_path, tmp_path / "c")
    assert "2 of 3 runs have started; resume with: consilience compare --resume" in page
    both = ["bytes", "gains", "accuracy", *ALL[2:-1], "features-1", "features-2", "time"]
    assert shown(page) == both
    (tmp_path / "c" / "comparison.toml").write_text("damaged")
    again = page_of(tmp_path, tmp_path / "c")
    assert "comparison.toml is damaged" in again and shown(again) == both


def test_sweep_has_a_run_per_setting_and_a_heatmap(tmp_path: Path, one_thread: None) -> None:
    grid = {"method.kd": [0, 10], "method.n_avg": [5, 10]}
    config = settings(method={"name": "representation-sharing"}, **TINY)
    assert sweep(config, grid=grid, out=tmp_path / "s").finished
    page = page_of(tmp_path, tmp_path / "s")
    assert shown(page) == ["settings", "accuracy", "bytes", *ALL[2:-1], "features-1", "features-2", "time"]
    assert "4 runs of representation-sharing" in page
    rows = values_of(specs_of(page)["settings"])
    assert {(row["method.kd"], row["method.n_avg"]) for row in rows} == set(product(("0", "10"), ("5", "10")))
    (tmp_path / "s" / "part-1" / "result.json").unlink()
    assert {row["method"] for row in values_of(specs_of(page_of(tmp_path, tmp_path / "s"))["accuracy"])} == {
        f"kd={kd} n_avg={n}" for kd, n in product((0, 10), (5, 10))
    }


# -- reproductions -----------------------------------------------------------------------------------------------------


def cells(scale: Scale) -> list[Cell]:
    names = ("independent", "fedavg", "fedproto")
    return [Cell({"row": n}, settings(**TINY, method={"name": n}).settings()) for n in names]


def stop(name: str, round_: int, *others: Any) -> None:
    if (name, round_) == ("fedavg", 1):
        raise KeyboardInterrupt


def test_interrupted_reproduction_shows_its_finished_cells(tmp_path: Path, one_thread: None) -> None:
    wanted = Reproduction("tiny", "for tests", cells, lambda outcomes: [ResultSection("Rows")])
    folder, names = tmp_path / "r", [cell.name for cell in cells(Scale())]
    (folder / "cells").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="has no run yet; resume with the command that started it"):
        write_report([folder], tmp_path / "report.html", None)
    with pytest.raises(KeyboardInterrupt):
        run_reproduction(wanted, Scale(), folder, stop)
    page = page_of(tmp_path, folder)
    assert "there is no results.json; 2 cells have started, and missing cells are not known" in page
    assert f"not finished: {names[1]};" in page and "fedavg (unfinished)" in page
    run_reproduction(wanted, Scale(), folder, saved_only=True)
    page = page_of(tmp_path, folder)
    assert (
        f"{folder}, tiny: missing when results.json was written: fedavg | fedproto; not finished: {names[1]};" in page
    )
    assert "resume with the command that started it: consilience reproduce tiny" in page
    assert {row["method"] for row in values_of(specs_of(page)["accuracy"])} == {"independent", "fedavg"}
    (folder / "results.json").write_text("[")
    assert "results.json is damaged" in page_of(tmp_path, folder)
    run_reproduction(wanted, Scale(), folder)
    assert "Missing data" not in page_of(tmp_path, folder)


def test_cells_of_one_method_are_labeled_by_cell_name(tmp_path: Path) -> None:
    for name in ("fedavg-offline-0", "fedavg-offline-0.9"):
        run_folder(tmp_path / "r" / "cells" / name, method={"name": "fedavg"})
    (tmp_path / "r" / "results.json").write_text('{"name": "thesis-asynchrony"}')
    found = read_runs([tmp_path / "r"])
    assert [run.label for run in found.runs] == ["fedavg (fedavg-offline-0)", "fedavg (fedavg-offline-0.9)"]
    assert found.notes == []


# -- files -------------------------------------------------------------------------------------------------------------


def test_every_chart_is_saved_as_svg_and_png(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    write_report([folder], tmp_path / "report.html", tmp_path / "figures")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {f"{n}.{e}" for n in ALL for e in ("svg", "png")}
    for name in ALL:
        assert (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "cross_entropy" in (tmp_path / "figures" / "losses.svg").read_text(encoding="utf-8")


def test_page_of_ten_large_runs_is_small(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / f"r{i}", rounds=100, learners=10, method={"name": "fedprox", "prox": i + 1})
        for i in range(10)
    ]
    page = write_report(folders, tmp_path / "report.html", None)
    assert page.stat().st_size < 2_000_000


def test_failed_write_leaves_existing_files_unchanged(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    with pytest.raises(ConfigurationError, match="is a folder, and a page is a file"):
        write_report([folder], tmp_path, None)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        write_page(tmp_path / "file" / "page.html", "A page", [Section("Words")], "command")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_missing_report_extra_is_refused_with_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[report\]"):
        write_report([run_folder(tmp_path / "a")], tmp_path / "report.html", None)


def test_text_on_the_page_is_html_escaped(tmp_path: Path) -> None:
    wild = "</script><script>alert(1)</script>"
    rows = [{"method": wild, "round": 1, "accuracy": 1.0}]
    sections = [Section(wild, wild, [{wild: wild}], charts.curves(rows), notes=[wild], details=[(wild, wild)])]
    write_page(tmp_path / "page.html", wild, sections, wild)
    assert wild not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_duplicate_headings_get_unique_ids_and_empty_cells_are_dashes(tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", "P", [Section("Same", table=[{"a": "x", "b": None}]), Section("Same")], "c")
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert 'id="same"' in page and 'id="same-2"' in page
    assert '<td class="number">–</td>' in page
    assert "vegaEmbed" not in page  # a page without charts does not include the chart library
