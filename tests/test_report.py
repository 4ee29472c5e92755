"""The report page: what it says, what it draws, and that it needs nothing else."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from consilience.config import Config, make_config
from consilience.data import load
from consilience.errors import CheckpointError, ConfigurationError, ConsilienceError, StorageError
from consilience.layout import Layout
from consilience.models import build
from consilience.report import figures, points
from consilience.report.feature_map import feature_map
from consilience.report.look import theme
from consilience.report.maps import MAPS
from consilience.report.metrics import Metrics
from consilience.report.page import Section, run_report, write_page
from consilience.report.placement import beside
from consilience.report.runs import read_runs
from consilience.report.tables import CAPTION, comparison, plain_text
from consilience.reproduce import Cell, Reproduction, Scale, Shown
from consilience.reproduce.conduct import conduct
from consilience.simulation import compare, sweep
from consilience.simulation.folder import RunFolder
from consilience.simulation.simulate import simulate

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

CHROMIUM = shutil.which("chromium")
TERMS = ("cross_entropy", "prototypes", "observations")


def settings(**changes: Any) -> Config:
    return make_config({"data": "digits", "learners": 2, "rounds": 2, "seeds": 2} | changes)


def line(round_: int, seed: int, learner: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    """A line of metrics as a run writes it: 100 bytes up and 50 down a round, and 10 up before the first."""
    return {
        "round": round_,
        "seed": seed,
        "learner": learner,
        "loss": dict.fromkeys(TERMS, None if round_ == 0 else 1 / round_),
        "accuracy": accuracy,
        "accuracy_local": accuracy,
        "mutual_information": None if round_ == 0 else 0.1 * round_,
        "bytes": {"up": 100 if round_ else 10, "down": 50 if round_ else 0},
        "seconds": {"train": 1.0},
        "participated": True,
    } | more


def run_folder(path: Path, lines: Sequence[dict[str, Any]] | None = None, **changes: Any) -> Path:
    """A run folder written by hand: accuracy is 10 x round + 2 x seed + learner."""
    config = settings(**changes)
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config.to_toml())
    where = product(range(config.rounds + 1), range(config.seeds), range(config.learners))
    found = [line(r, s, w, 10.0 * r + 2 * s + w if r else None) for r, s, w in where] if lines is None else lines
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in found))
    about = {"data": {"name": "digits", "labels": []}, "partition": config.partition, "shift": "none"}
    case = {"figure": "7c", "in_words": "learners differ in p(y)"}
    data = about | {"case": case, "class_table": {"10": [[4] * 10] * 2, "9": [[7] * 10] * 2}}
    (path / "data.json").write_text(json.dumps(data))
    accuracy = {"mean": 21.5, "std_seeds": 1.4, "std_learners": 0.5}
    kind: dict[str, Any] = {"model": "mlp", "accuracy": accuracy, "accuracy_local": accuracy}
    kind["bytes"] = {"up": 100.0, "down": 50.0}
    method = {"method": config.method.name, "settings": config.method.settings}
    extent = {"rounds": config.rounds, "seeds": config.seeds, "bytes_total": 640.0, "diverged": [], "finished": True}
    result: dict[str, Any] = {**method, **extent, **kind}
    result["seconds"] = {"total": 3.0, "train": 1.5, "represent": 0.5, "exchange": 0.5, "evaluate": 0.5}
    result["kinds"] = {"sceptics": kind}
    (path / "result.json").write_text(json.dumps(result))
    return path


def page_of(tmp_path: Path, *folders: Path) -> str:
    """A report's page, without the scripts at its end."""
    out = run_report(folders, tmp_path / "report.html", None)
    return out.read_text(encoding="utf-8").partition('<script type="module">')[0]


def shown(page: str) -> list[str]:
    """Names of the charts in a page."""
    return re.findall(r'<figure data-chart="([^"]*)"', page)


def specs_of(page: str) -> dict[str, Any]:
    found = re.findall(r'<figure data-chart="([^"]*)".*?<script type="application/json">(.*?)</script>', page, re.S)
    return {name: json.loads(text) for name, text in found}


def values_of(spec: Any) -> list[dict[str, Any]]:
    """All rows in a chart, those of its layers too."""
    if isinstance(spec, list):
        return [row for each in spec for row in values_of(each)]
    if not isinstance(spec, dict):
        return []
    rows = spec["data"].get("values", []) if isinstance(spec.get("data"), dict) else []
    return rows + [row for key, each in spec.items() if key != "data" for row in values_of(each)]


ALL = ["accuracy", "bytes", "learners", "partition", "losses", "mutual-information", "time"]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_curves_are_means_over_learners_and_seeds_with_a_band_of_seeds(tmp_path: Path) -> None:
    (run,) = read_runs([run_folder(tmp_path / "a")]).runs
    first, last = run.metrics.curve("accuracy")
    assert first["accuracy"] == 11.5 and last["accuracy"] == 21.5 and last["round"] == 2
    assert last["high"] - last["accuracy"] == pytest.approx(2**0.5)  # means of seeds are 20.5 and 22.5
    assert run.metrics.sent() == {0: 20.0, 1: 320.0, 2: 620.0}  # two learners, the mean of seeds
    assert run.metrics.final == {(0, 0): 20.0, (0, 1): 21.0, (1, 0): 22.0, (1, 1): 23.0}


def test_one_seed_has_a_band_of_learners_and_one_learner_none() -> None:
    metrics = Metrics()
    metrics.add(1, 0, 0, {"accuracy": 1.0})
    assert metrics.curve("accuracy") == [{"round": 1, "accuracy": 1.0, "low": None, "high": None}]
    metrics.add(1, 0, 1, {"accuracy": 3.0})
    metrics.add(1, 0, 1, {"accuracy": 99.0})  # once is enough
    assert metrics.curve("accuracy") == [{"round": 1, "accuracy": 2.0, "low": 1.0, "high": 3.0}]


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is no run, comparison, sweep or reproduction: it has no config"):
        run_report([tmp_path], tmp_path / "report.html", None)
    with pytest.raises(ConfigurationError, match="name at least one"):
        run_report([], tmp_path / "report.html", None)
    (tmp_path / "comparison.toml").write_text('methods = ["fedavg"]\n[config]\n')
    with pytest.raises(CheckpointError, match="holds no run yet; go on with: consilience compare --resume"):
        run_report([tmp_path], tmp_path / "report.html", None)
    assert not (tmp_path / "report.html").exists()


# -- what the page says ------------------------------------------------------------------------------------------------


def test_a_finished_run_has_all_sections_and_nothing_is_missing(tmp_path: Path) -> None:
    page = page_of(tmp_path, run_folder(tmp_path / "a", method={"name": "consilience"}))
    assert shown(page) == ALL
    assert 'role="note"' not in page
    cells = re.findall(r'<td data-label="([^"]*)"[^>]*>([^<]*)</td>', page)
    assert cells[:3] == [("accuracy %", "21.5 ± 1.4"), ("± of learners", "0.5"), ("own data", "21.5")]
    assert cells[3:5] == [("up a round", "100 B"), ("down a round", "50 B")]
    assert cells[5:7] == [("total", "640 B"), ("time", "3.0 s")]
    assert "By kind of learner" in page and "sceptics" in page
    assert "case 7c of the nine: learners differ in p(y)" in page
    assert "name = &quot;consilience&quot;" in page  # the settings to repeat it
    assert "consilience report" in page
    specs = specs_of(page)
    assert {row["samples"] for row in values_of(specs["partition"])} == {7}  # seed 9 is before seed 10
    assert [row["bytes"] for row in values_of(specs["bytes"])] == [320.0, 620.0]
    assert {row["accuracy"] for row in values_of(specs["learners"])} == {21.0, 22.0}
    assert all(row["high"] in (12.91, 22.91) for row in values_of(specs["accuracy"]))  # four digits


def test_runs_of_different_tasks_are_told_apart_and_of_one_task_put_together(tmp_path: Path) -> None:
    a = run_folder(tmp_path / "a", method={"name": "fedavg"})
    b = run_folder(tmp_path / "b", method={"name": "fedavg"})
    c = run_folder(tmp_path / "c", partition="dirichlet(0.3)")
    page = page_of(tmp_path, a, b, c, a)
    tasks = [f"digits, mlp, 2 learners, {partition}" for partition in ("iid", "dirichlet(0.3)")]
    assert re.findall(r"<h2>([^<]*)</h2>", page) == tasks
    assert shown(page)[:7] == [f"task-1-{name}" for name in ALL] and len(shown(page)) == 14
    names = {row["method"] for row in values_of(specs_of(page)["task-1-accuracy"])}
    assert names == {f"fedavg ({a})", f"fedavg ({b})"}


def test_no_round_tested_yet_is_said(tmp_path: Path) -> None:
    lines = [line(r, s, w, None) for r, s, w in product(range(3), range(2), range(2))]
    page = page_of(tmp_path, run_folder(tmp_path / "a", lines))
    assert "No round has been tested yet." in page and "accuracy" not in shown(page)


def test_many_runs_and_learners_are_thinned_and_it_is_said(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / f"r{i}", method={"name": "fedprox", "prox": i + 1}) for i in range(13)]
    page = page_of(tmp_path, *folders)
    assert "Of 13 runs the best 12 are shown." in page and "13 runs of fedprox" in page
    assert "prox=1<" in page and page.count("<tr>") == 1 + 13 + 1 + 13


# -- all asked together, and a layer watched ---------------------------------------------------------------------------


def watched(path: Path, **changes: Any) -> Path:
    """A run in which all were asked together, with and without their own heads, and a layer was watched."""
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


def cells_of(page: str, name: str) -> list[str]:
    return re.findall(rf'<td data-label="{name}"[^>]*>([^<]*)</td>', page)


def test_what_all_told_together_and_a_layer_gave_away_have_curves_and_columns(tmp_path: Path) -> None:
    page = page_of(tmp_path, watched(tmp_path / "a"), run_folder(tmp_path / "b", method={"name": "fedavg"}))
    assert shown(page) == [*ALL[:3], "together", "dependence", *ALL[3:]]
    assert "All asked together, over rounds" in page and "Distance correlation over rounds" in page
    rows = values_of(specs_of(page)["together"])
    assert {(row["told by"], row["round"], row["accuracy"]) for row in rows} == {
        ("all asked", 1, 71.0),
        ("all asked", 2, 81.0),
        ("own heads", 1, 61.0),
        ("own heads", 2, 71.0),
    }
    fell = {row["round"]: row["dependence"] for row in values_of(specs_of(page)["dependence"])}
    assert fell == pytest.approx({1: 0.79, 2: 0.69})
    assert [cells_of(page, name) for name in ("all asked", "own heads", "dcor")] == [
        ["81.2", "–"],
        ["71.2", "–"],
        ["0.69", "–"],
    ]
    assert "Dcor: distance correlation of inputs and the layer watched." in page


def test_a_page_of_runs_that_were_not_asked_has_nothing_of_it(tmp_path: Path) -> None:
    page = page_of(tmp_path, run_folder(tmp_path / "a"))
    assert not {"together", "dependence"} & set(shown(page))
    assert not [word for word in ("sked", "own heads", "cor:") if word in page.partition("Do it again")[0]]


def test_what_all_told_in_a_run_that_broke_off_is_taken_from_its_lines(tmp_path: Path) -> None:
    folder = watched(tmp_path / "a")
    (folder / "result.json").unlink()
    (run,) = read_runs([folder]).runs
    assert [run.summary[key]["mean"] for key in ("ensemble", "heads", "dependence")] == pytest.approx([81, 71, 0.69])
    assert cells_of(page_of(tmp_path, folder), "all asked") == ["81.0"]


def test_what_all_told_may_be_damaged(tmp_path: Path) -> None:
    folder = watched(tmp_path / "a")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"dependence": {"mean": "much", "std_seeds": None}}))
    page = page_of(tmp_path, folder)
    assert "result.json is damaged: numbers are missing" in page and cells_of(page, "dcor") == ["0.69"]


def test_a_comparison_has_columns_of_it_and_fits_a_terminal(one_thread: None) -> None:
    small: dict[str, Any] = {"train": 60, "test": 40, "learners": 2, "rounds": 1, "seeds": 2, "workers": 0}
    asked = simulate(method="two-stage", watch="cut", **small).summary()
    plain = simulate(method="independent", **small).summary()
    text = plain_text(comparison([asked, plain]))
    assert f" {asked['ensemble']['mean']:.1f} " in text and f" {asked['dependence']['mean']:.2f} " in text
    asked |= {"heads": {"mean": 54.32}, "bytes": {"up": 26.8e3, "down": 26.8e3}, "bytes_total": 29.9e6}
    table = comparison([asked, plain])
    text = plain_text(table)
    assert " 54.3 " in text and text.count(" – ") == 3
    assert [word in text for word in ("heads", "dcor", "asked", "time")] == [True, True, True, False]
    assert "Dcor: distance correlation of inputs and the layer watched." in " ".join(text.split())
    Console(file=(narrow := io.StringIO()), width=80).print(table)
    assert CAPTION in " ".join(narrow.getvalue().split()), "or what is too wide was cut off"
    text = plain_text(comparison([plain]))
    assert [word in text for word in ("heads", "dcor", "asked", "time")] == [False, False, False, True]


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_a_run_that_broke_off_shows_how_far_it_got(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", rounds=5)
    (folder / "result.json").unlink()
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(text[:12]) + text[12][:30])  # rounds 0 to 2, and a torn line
    page = page_of(tmp_path, folder)
    assert f"2 of 5 rounds are there; go on with: consilience run --resume {folder}" in page
    assert "damaged lines, left out: 1" in page and "(unfinished)" in page
    assert ">21.5 ± 1.4<" in page and ">620 B<" in page
    assert shown(page) == ALL[:-1]  # what time it took is not known


def test_a_run_whose_result_is_gone_but_whose_rounds_are_all_there_is_finished(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    (folder / "result.json").write_text('{"finished": true}')
    page = page_of(tmp_path, folder)
    assert "result.json is damaged: numbers are missing. What the run came to is taken from its metrics." in page
    assert "(unfinished)" not in page and ">21.5 ± 1.4<" in page


@pytest.mark.parametrize("file", ["config.toml", "data.json", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00\xfe", b"[]", b"{}", b'{"finished": 1, "variants": 3}', b"[[["])
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path, file: str, content: bytes) -> None:
    folder = run_folder(tmp_path / "a")
    (folder / file).write_bytes(content)
    page = page_of(tmp_path, folder)
    assert shown(page)
    if (file, content) != ("config.toml", b""):  # an empty file of settings is one that sets nothing
        assert re.search(rf'role="note">[^<]*{re.escape(file)}', page)


def test_missing_lines_are_counted(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(text[:3] + text[5:]))
    assert "missing lines: 2" in page_of(tmp_path, folder)


def test_lines_of_nonsense_do_no_harm(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        for wild in ({"round": 10**15}, {"seed": "x"}, {"variant": 3}, {"accuracy": 10**400}, {"learner": -1}):
            file.write(f"{json.dumps(line(1, 0, 0, 1.0) | wild)}\n")
    assert "damaged lines, left out: 5" in page_of(tmp_path, folder)


# -- comparisons and sweeps --------------------------------------------------------------------------------------------

TINY = {"train": 60, "test": 40, "workers": 0}


def test_a_comparison_that_is_not_done_says_so(tmp_path: Path, one_thread: None) -> None:
    names = ["independent", "representation-sharing", "fedavg"]
    work = compare.begin(settings(**TINY), names, tmp_path / "c")
    for _ in zip(work.play(), names[:2], strict=False):
        pass
    shutil.rmtree(tmp_path / "c" / "fedavg", ignore_errors=True)
    page = page_of(tmp_path, tmp_path / "c")
    assert "2 of 3 runs have begun; go on with: consilience compare --resume" in page
    both = [*ALL[:-1], "features-1", "features-2", "time"]
    assert shown(page) == both
    (tmp_path / "c" / "comparison.toml").write_text("damaged")
    again = page_of(tmp_path, tmp_path / "c")
    assert "comparison.toml is damaged" in again and shown(again) == both


def test_a_sweep_is_a_run_for_each_setting_and_a_map(tmp_path: Path, one_thread: None) -> None:
    grid = {"method.kd": [0, 10], "method.n_avg": [5, 10]}
    config = settings(method={"name": "representation-sharing"}, **TINY)
    assert all(sweep.begin(config, grid, tmp_path / "s").play())
    page = page_of(tmp_path, tmp_path / "s")
    assert shown(page) == ["settings", *ALL[:-1], "features-1", "features-2", "time"]
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
    return [Cell({"row": n}, settings(**TINY, method={"name": n}).model_dump(exclude_none=True)) for n in names]


def stop(name: str, round_: int, *others: Any) -> None:
    if (name, round_) == ("fedavg", 1):
        raise KeyboardInterrupt


def test_a_reproduction_that_was_stopped_is_shown_as_far_as_it_got(tmp_path: Path, one_thread: None) -> None:
    wanted = Reproduction("tiny", "for tests", cells, lambda outcomes: [Shown("Rows")])
    folder, names = tmp_path / "r", [cell.name for cell in cells(Scale())]
    (folder / "cells").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="holds no run yet; go on with the command that began it"):
        run_report([folder], tmp_path / "report.html", None)
    with pytest.raises(KeyboardInterrupt):
        conduct(wanted, Scale(), folder, stop)
    page = page_of(tmp_path, folder)
    assert "there is no results.json; 2 cells have begun, and those that have not are not known" in page
    assert f"not finished: {names[1]};" in page and "fedavg (unfinished)" in page
    conduct(wanted, Scale(), folder, kept=True)
    page = page_of(tmp_path, folder)
    assert f"{folder}, tiny: missing when it was last told: fedavg | fedproto; not finished: {names[1]};" in page
    assert "go on with the command that began it: consilience reproduce tiny" in page
    assert {row["method"] for row in values_of(specs_of(page)["accuracy"])} == {"independent", "fedavg"}
    (folder / "results.json").write_text("[")
    assert "results.json is damaged" in page_of(tmp_path, folder)
    conduct(wanted, Scale(), folder)
    assert 'role="note"' not in page_of(tmp_path, folder)


def test_cells_of_one_method_go_by_their_names(tmp_path: Path) -> None:
    for name in ("fedavg-offline-0", "fedavg-offline-0.9"):
        run_folder(tmp_path / "r" / "cells" / name, method={"name": "fedavg"})
    (tmp_path / "r" / "results.json").write_text('{"name": "thesis-asynchrony"}')
    found = read_runs([tmp_path / "r"])
    assert [run.label for run in found.runs] == ["fedavg (fedavg-offline-0)", "fedavg (fedavg-offline-0.9)"]
    assert found.notes == []


# -- feature maps ------------------------------------------------------------------------------------------------------

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        last = nn.Linear(4 * 4 * 4, 16), nn.Tanh(), nn.Linear(16, num_classes)
        super().__init__(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3), nn.Flatten(), *last)
"""


@pytest.fixture
def run(tmp_path: Path, one_thread: None) -> Path:
    """A run of two variants and seeds on data of one's own: an MLP, somebody's own model in a group, and MLPs again."""
    (tmp_path / "net.py").write_text(NET)
    data = load("digits", train=90, test=60)
    np.savez(tmp_path / "own.npz", x=data.inputs, y=data.targets, test_x=data.test_inputs, test_y=data.test_targets)
    simulate(
        data=str(tmp_path / "own.npz"),
        model="mlp",
        width=16,
        method="representation-sharing",
        learners=4,
        rounds=1,
        seeds=2,
        workers=0,
        groups={"odd": {"learners": [1], "model": f"{tmp_path / 'net.py'}:Net"}},
        variants=[{"method.kd": 1}, {"method.kd": 2}],
        out=tmp_path / "run",
    )
    return tmp_path / "run"


def by_hand(run: Path, learner: int) -> np.ndarray:
    """A learner's features, from its weights in the first row of its cohort."""
    config, kept = RunFolder(run).config, RunFolder(run).load()
    assert kept is not None
    data = load(config.data)
    model = build(config.models[learner], data.shape, data.classes, 16)
    layout = Layout({name: tuple(value.shape) for name, value in model.named_parameters()}, channels_last=True)
    flat = torch.from_numpy(kept[0][f"learners.{learner}.parameters"][0])
    for name, value in model.named_parameters():
        value.data = layout.views(flat)[name]
    with torch.no_grad():
        features: np.ndarray = model.features(torch.from_numpy(data.test_inputs)).numpy()
    return features


def test_a_map_has_the_features_of_each_learner_s_own_model(run: Path) -> None:
    found = feature_map(run)
    assert found.features.shape == (2, 60, 16)
    for learner in (0, 1):  # each is the first of its cohort, in the first seed and variant
        np.testing.assert_allclose(found.features[learner], by_hand(run, learner), atol=1e-5)
    assert len(found.rows) == 120 and {row["learner"] for row in found.rows} == {0, 1}
    classes = [str(c) for c in load(RunFolder(run).config.data).test_targets]
    assert [row["class"] for row in found.rows] == 2 * classes
    assert found.text.startswith("Features of 60 test samples at learners 0 and 1, after round 1, seed 0, method.kd=1,")
    assert feature_map(run, samples=20).features.shape[1] == 20


def test_kernels_that_a_gpu_laid_out_are_read_as_such(run: Path) -> None:
    before, folder = feature_map(run).features, RunFolder(run)
    config, kept = folder.config, folder.load()
    assert kept is not None
    shapes = {name: tuple(p.shape) for name, p in build(config.models[1], (1, 8, 8), 10).named_parameters()}
    arrays, key = dict(kept[0]), "learners.1.parameters"
    views = Layout(shapes, channels_last=True).views(torch.from_numpy(arrays[key]))
    arrays[key] = Layout(shapes).flat(views).numpy()
    (run / "config.toml").write_text(config.model_copy(update={"device": "cuda"}).to_toml())
    folder.save(arrays, {k: v for k, v in kept[1].items() if k not in ("file", "sha256", "config")}, 1)
    np.testing.assert_allclose(feature_map(run).features, before, atol=1e-5)


def test_variants_of_a_run_have_one_map(tmp_path: Path, run: Path) -> None:
    page = page_of(tmp_path, run)
    assert [name for name in shown(page) if "features" in name] == ["features"]
    assert "2 runs of representation-sharing" in page and "No map" not in page


def harm(run: Path, how: str) -> None:
    checkpoint, data, model = next(run.glob("*.safetensors")), run.parent / "own.npz", run.parent / "net.py"
    if how == "forgotten":
        RunFolder(run).forget()
    elif how == "torn":
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    elif how == "other data":
        np.savez(data, **{**np.load(data), "test_y": np.zeros(60, dtype=np.int64)})
    elif how == "other model":
        model.write_text(f"{NET}# changed")
    else:
        {"gone": checkpoint, "no data": data, "no model": model}[how].unlink()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("forgotten", "no checkpoint is kept in the run&#x27;s folder"),
        ("torn", "is damaged: its SHA-256 is not the one"),
        ("gone", "is missing, though checkpoint.json names it"),
        ("other data", "the data that is here now is not the one of the run"),
        ("no data", "there is no such file or folder"),
        ("other model", "the model that is here now is not the one of the run"),
        ("no model", "net.py: no such file"),
    ],
)
def test_where_there_can_be_no_map_the_page_says_why_in_a_line(tmp_path: Path, run: Path, how: str, why: str) -> None:
    harm(run, how)
    page = page_of(tmp_path, run)
    assert not [name for name in shown(page) if "features" in name] and "accuracy" in shown(page)
    (line,) = re.findall(r"<p>(No map: [^<]*)</p>", page)
    assert why in line


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "centralized"}}, "there is one learner"),
        ({"learners": 1, "method": {"name": "independent"}}, "there is one learner"),
        ({"test": 3}, "3 test samples at two learners are too few"),
        ({"model": "mlp,wide"}, "features of widths 32 and 48 cannot be laid out together"),
    ],
)
def test_what_makes_no_map_is_refused_by_name(
    tmp_path: Path, one_thread: None, changes: dict[str, Any], why: str
) -> None:
    if "model" in changes:
        (tmp_path / "wide.py").write_text(NET.replace("16", "48"))
        changes = {"model": f"mlp,{tmp_path / 'wide.py'}:Net", "method": {"name": "independent"}}
    simulate(settings(**(TINY | {"rounds": 1} | changes)), out=tmp_path / "run")
    with pytest.raises(ConsilienceError, match=why):
        feature_map(tmp_path / "run")


def test_a_page_has_so_many_maps_and_no_more(tmp_path: Path, run: Path) -> None:
    folders = [tmp_path / f"run-{i}" for i in range(MAPS + 1)]
    for folder in folders:
        shutil.copytree(run, folder)
    page = page_of(tmp_path, *folders)
    assert len([name for name in shown(page) if "features" in name]) == MAPS
    assert f"a page has {MAPS} at most" in page


# -- files -------------------------------------------------------------------------------------------------------------


def test_every_chart_is_also_an_svg_and_a_png(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    run_report([folder], tmp_path / "report.html", tmp_path / "figures")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {f"{n}.{e}" for n in ALL for e in ("svg", "png")}
    for name in ALL:
        assert (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "cross_entropy" in (tmp_path / "figures" / "losses.svg").read_text(encoding="utf-8")


def test_a_page_of_ten_large_runs_is_small(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / f"r{i}", rounds=100, learners=10, method={"name": "fedprox", "prox": i + 1})
        for i in range(10)
    ]
    page = run_report(folders, tmp_path / "report.html", None)
    assert page.stat().st_size < 2_000_000


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    with pytest.raises(ConfigurationError, match="is a folder, and a page is one file"):
        run_report([folder], tmp_path, None)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        write_page(tmp_path / "file" / "page.html", "A page", [Section("Words")], "command")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_the_extra_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"pip install consilience\[report\]"):
        run_report([run_folder(tmp_path / "a")], tmp_path / "report.html", None)


def test_words_of_others_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    wild = "</script><script>alert(1)</script>"
    rows = [{"method": wild, "round": 1, "accuracy": 1.0}]
    sections = [Section(wild, wild, [{wild: wild}], figures.curves(rows), notes=[wild], details=[(wild, wild)])]
    write_page(tmp_path / "page.html", wild, sections, wild)
    assert wild not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_sections_of_one_name_keep_apart_and_empty_cells_are_dashes(tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", "P", [Section("Same", table=[{"a": "x", "b": None}]), Section("Same")], "c")
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert 'id="same"' in page and 'id="same-2"' in page
    assert '<td data-label="b" class="number">–</td>' in page
    assert "vegaEmbed" not in page  # a page without charts does not carry the bundle


# -- charts ------------------------------------------------------------------------------------------------------------

CHARTS = {
    "curves": figures.curves([{"method": m, "round": r, "accuracy": r} for m in "ab" for r in (1, 2)]),
    "silent": figures.over_bytes([{"method": "a", "bytes": 0, "accuracy": 1.0}]),
    "bytes": figures.over_bytes([{"method": m, "bytes": b, "accuracy": 1.0} for m in "ab" for b in (0, 10, 1e7)]),
    "spread": figures.spread([{"method": "a", "accuracy": a} for a in (1.0, 2.0)]),
    "partition": figures.partition([{"learner": 0, "class": c, "samples": 3} for c in "ab"]),
    "losses": figures.losses([{"method": "a", "term": t, "round": r, "value": r} for t in "xyz" for r in (1, 2)]),
    "bound": figures.bound([{"method": "a", "round": r, "mutual_information": 0.1} for r in (1, 2)]),
    "heatmap": figures.heatmap([{"a.b": x, "c": "d", "gain": x - 1.5} for x in (1, 2)], "a.b", "c", "gain"),
    "phases": figures.phases([{"method": "a", "phase": p, "seconds": 1.0} for p in ("train", "exchange")]),
    "scatter": points.scatter([{"x": x, "y": x, "learner": x, "class": "c"} for x in (0.0, 1.0)]),
    "frontier": points.frontier([{"a.b": b, "c": b % 7, "name": f"{b}"} for b in (0, 10, 12, 500)], "a.b", "c", "name"),
    "nobody sends": points.frontier([{"b": 0, "c": c, "name": "n"} for c in (1.0, None)], "b", "c", "name"),
}

SENT = (0, 506, 592, 1012, 1880, 2025, 2312, 3560, 3752, 4050, 7120, 7204, 7288, 7457, 7794, 33726, 62876, 124848)
REACHED = (77.9, 84.8, 78.6, 85.9, 80, 86.6, 81.7, 80.1, 82.1, 86.2, 81.9, 87, 87.8, 88.1, 87.9, 88, 88.3, 88.4)


def test_numbers_of_a_frontier_lie_apart_and_the_line_is_along_the_best() -> None:
    rows = [{"bytes": b, "accuracy": a, "what": f"way {i}"} for i, (b, a) in enumerate(zip(SENT, REACHED, strict=True))]
    spec = points.frontier(rows, "bytes", "accuracy", "what").to_dict()
    stairs, marks, *_ = spec["layer"]
    told, line = (values_of(layer) for layer in (marks, stairs))
    assert [row["key"] for row in told][:2] == ["1  way 0", "2  way 1"] and len(told) == 18
    best = [i + 1 for i in range(18) if all(a < REACHED[i] for a in REACHED[:i])]
    assert [row["number"] for row in told if row["best"]] == best == [1, 2, 4, 6, 12, 13, 14, 17, 18]
    assert [row["accuracy"] for row in line] == [*(REACHED[i - 1] for i in best), 88.4]  # and on to the edge
    assert 0 < told[0]["place"] < 506 and "? '0' :" in marks["encoding"]["x"]["axis"]["labelExpr"]
    (left, right), (bottom, top) = (marks["encoding"][axis]["scale"]["domain"] for axis in ("x", "y"))
    for width in (260, 640, 860):
        at = [
            (
                width * np.log(row["place"] / left) / np.log(right / left) + row["right"],
                450 * (top - row["accuracy"]) / (top - bottom) + row["down"],
            )
            for row in told
        ]
        close = [(p, q) for i, p in enumerate(at) for q in at[:i] if abs(p[0] - q[0]) < 14 and abs(p[1] - q[1]) < 11]
        assert not close, f"numbers lie on each other in a chart {width} pixels wide"


def test_words_avoid_points_words_and_the_edge() -> None:
    assert beside([(0.5, 0.5)], [(100, 100)], (10, 10)) == [(12.0, 0.0)]
    ((right, _),) = beside([(0.99, 0.5)], [(100, 100)], (10, 10))
    assert right <= 0
    first, second = beside([(0.5, 0.5), (0.5, 0.5)], [(100, 100)], (10, 10))
    assert first != second


def test_ten_classes_differ_in_colour_by_day_and_by_night_and_in_shape_from_their_neighbours() -> None:
    rows = [{"x": c, "y": c % 3, "learner": w, "class": str(c)} for c, w in product(range(20), range(2))]
    encoding = points.scatter(rows).to_dict()["layer"][0]["encoding"]
    assert encoding["fill"]["scale"]["range"] == "ordinal" and encoding["fill"]["scale"]["domain"][-1] == "19"
    shapes = encoding["shape"]["scale"]["range"]
    for dark in (False, True):
        colours = theme(dark)["range"]["ordinal"]
        assert len(set(colours)) == 10 and theme(dark)["background"] not in colours
        assert len({(i % 10, shapes[i % len(shapes)]) for i in range(20)}) == 20


def test_a_class_that_lies_together_has_one_name_and_one_that_does_not_has_two() -> None:
    rows = [{"x": x, "y": 0.0, "learner": w, "class": "near"} for x, w in ((0.0, 0), (0.01, 1))]
    rows += [{"x": x, "y": 1.0, "learner": w, "class": "far"} for x, w in ((0.0, 0), (1.0, 1))]
    words = points.scatter(rows).to_dict()["layer"][-1]
    assert sorted(row["class"] for row in values_of(words)) == ["far", "far", "near"]


def test_more_methods_than_colours_still_differ_in_dashes_or_colours() -> None:
    names = [f"m{i}" for i in range(12)]
    rows = [{"method": name, "round": 1, "accuracy": 1.0} for name in names]
    dashes = figures.curves(rows).to_dict()["encoding"]["strokeDash"]["scale"]["range"]
    looks = {(i % 8, tuple(dashes[i % len(dashes)])) for i in range(12)}
    assert len(looks) == 12


def test_a_gain_below_nothing_has_its_middle_at_0_and_words_in_its_cells() -> None:
    spec = CHARTS["heatmap"].to_dict()
    cells, words = spec["layer"]
    assert cells["encoding"]["color"]["scale"]["domain"] == [-0.5, 0.5]
    assert words["mark"]["type"] == "text"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=CHROMIUM, args=[*quiet, "--disable-sync"])
        yield opened
        opened.close()


def look(browser: Any, page: Path, scheme: str = "light", width: int = 1000) -> tuple[Any, list[str]]:
    """A page opened without a network, its charts drawn; and all that went wrong."""
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": width, "height": 800})
    view, wrong = context.new_page(), []
    view.on("console", lambda said: wrong.append(said.text))
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    view.goto(page.as_uri())
    view.wait_for_selector("html[data-drawn]", timeout=60_000)
    return view, wrong


@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 1000), ("light", 390)])
def test_a_browser_draws_every_chart_without_a_network(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    page = run_report([run_folder(tmp_path / "a")], tmp_path / "report.html", None)
    view, wrong = look(browser, page, scheme, width)
    assert wrong == []
    assert [view.locator(f'figure[data-chart="{name}"] svg.marks').count() for name in ALL] == [1] * len(ALL)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 25, 29)"}[scheme]
    view.context.close()


def test_words_of_a_chart_are_light_at_night(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", "P", [Section("frontier", figure=CHARTS["frontier"])], "c")
    for scheme, ink in (("light", "#1f2328"), ("dark", "#e8e8e8")):
        view, wrong = look(browser, tmp_path / "p.html", scheme, 390)
        words = view.locator("figure svg.marks g.mark-text.role-mark").last.locator("text")
        assert wrong == [] and words.all_text_contents() == ["1", "2", "3", "4"]
        assert {each.get_attribute("fill") for each in words.all()} == {ink}
        view.context.close()


def test_charts_are_drawn_anew_at_nightfall(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", "P", [Section(n, figure=c) for n, c in CHARTS.items()], "c")
    view, wrong = look(browser, tmp_path / "p.html")
    assert (wrong, view.locator("figure svg.marks").count()) == ([], len(CHARTS))
    by_day = view.locator('figure[data-chart="curves"] svg.marks').inner_html()
    view.emulate_media(color_scheme="dark")
    view.wait_for_selector('html[data-drawn="dark"]')
    assert wrong == []
    assert view.locator("figure svg.marks").count() == len(CHARTS)
    assert view.locator('figure[data-chart="curves"] svg.marks').inner_html() != by_day
    view.context.close()
