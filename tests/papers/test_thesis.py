"""Published tables and figures: their cells, running and resuming them, and their results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pytest

from consilience import simulate
from consilience.data.heterogeneity import CASES
from consilience.errors import CheckpointError, ConfigurationError, UnknownName
from consilience.methods import METHODS, build_method
from consilience.papers import REPRODUCTIONS, Cell, Outcome, Reproduction, ResultSection, Scale, run_cells
from consilience.papers.finished_cells import read_finished
from consilience.papers.run import run_reproduction, write_reproduction_page
from consilience.papers.thesis.communication import message_bytes
from consilience.papers.thesis.published import TABLE1, TASKS, best_published, published
from consilience.papers.thesis.table1 import ROWS

Command = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {"train": 40, "test": 20, "learners": 2, "rounds": 2, "workers": 0}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", list(REPRODUCTIONS))
def test_every_cell_has_a_valid_configuration(name: str, quick: bool) -> None:
    cells = REPRODUCTIONS[name].cells(Scale(quick=quick))
    for cell in cells:
        build_method(cell.config.method.name, cell.config.method.settings)
    assert len({cell.name for cell in cells}) == len(cells)
    assert all(cell.config.federation.seeds == 1 for cell in cells if quick)


def test_table1_has_the_published_settings() -> None:
    cells = REPRODUCTIONS["thesis-table1"].cells(Scale(device="cuda", seeds=3))
    assert len(cells) == 3 * (3 * len(ROWS) - 2)  # centralized once per task
    by_task = {cell.labels["task"]: cell.config for cell in cells}
    assert {t: (c.model.name, c.data.train, c.training.rounds, c.federation.seeds) for t, c in by_task.items()} == {
        "MNIST": ("lenet5", 1200, 100, 3),
        "Fashion-MNIST": ("resnet9", 6000, 20, 3),
        "CIFAR-10": ("resnet18", 10_000, 20, 3),
    }
    trainings = [config.training for config in by_task.values()]
    assert all((t.batch_size, t.lr, t.optimizer) == (32, 1e-3, "adam") for t in trainings)


def test_published_accuracies() -> None:
    assert published("representation-sharing", "MNIST", 10) == 82.07
    assert published("consilience", "MNIST", 10) is None
    assert best_published("Fashion-MNIST", 5) == 89.28 and best_published("MNIST", 2) == 94.45
    assert set(TABLE1) <= set(ROWS)


def test_ablation_is_one_run_of_64_variants() -> None:
    (cell,) = REPRODUCTIONS["thesis-ablation"].cells(Scale())
    assert len(cell.config.variants) == 64 and {"method.kd": 10, "method.contrast": 0.5} in cell.config.variants


def test_ablation_shows_every_pair_of_weights_as_a_heat_map() -> None:
    """Also without prototypes, kd = 0, and without contrast; the gain is over both at 0."""
    weights = (0, 0.1, 0.5, 1, 2, 4, 8, 10)
    each = [
        {"set": {"method.kd": kd, "method.contrast": contrast}, "accuracy": {"mean": 80 + kd - contrast / 2}}
        for kd in weights
        for contrast in weights
    ]
    outcome = Outcome({"what": "ablation"}, {"rounds": 100, "variants": each}, Path("nowhere"))
    (section,) = REPRODUCTIONS["thesis-ablation"].sections([outcome])
    assert section.figure is not None and len(section.table) == 64
    gains = {(row["kd"], row["contrast"]): row["gain"] for row in section.table}
    assert gains[0, 0] == 0 and gains[0, 10] == -5 and gains[10, 0] == 10 and gains[10, 1] == 9.5
    drawn = section.figure().to_dict()
    assert [layer["mark"]["type"] for layer in drawn["layer"]] == ["rect", "text"]


def test_observations_change_one_thing_at_a_time() -> None:
    cells = REPRODUCTIONS["thesis-observations"].cells(Scale())
    assert {c.labels["condition"] for c in cells} == {"iid", "alpha 0.3"} and len(cells) == 2 * 13
    changed = [{k: v for k, v in c.config.method.settings.items() if k != "min_count"} for c in cells]
    assert all(len(settings) <= 1 for settings in changed)
    assert sum(settings == {} for settings in changed) == 2
    assert {v for settings in changed for k, v in settings.items() if k == "down"} == {2, 5, 10}
    single = [c.config.method.settings for c in cells if "min_count" in c.config.method.settings]
    assert single == [{"n_avg": 1, "min_count": 1}] * 2


def test_classes_have_as_many_images() -> None:
    cells = REPRODUCTIONS["thesis-classes"].cells(Scale())
    assert {(c.config.data.classes, c.config.data.train) for c in cells} == {(2, 1200), (5, 1200), (10, 1200)}
    assert len(cells) == 12


def test_asynchrony_keeps_the_names_of_its_finished_cells() -> None:
    """The committed results are those of cells that the reproduction has today."""
    folder = Path(__file__).parents[2] / "benchmarks" / "results" / "thesis-asynchrony"
    cells = REPRODUCTIONS["thesis-asynchrony"].cells(Scale())
    assert read_finished(folder).keys() <= {cell.name for cell in cells}
    plans = {c.labels["condition"]: c.config.federation.reachable for c in cells}
    assert plans["all but the same two offline"] == "fixed(2)" and plans["all but two in turn offline"] == "turns(2)"
    assert plans["two of ten present"] == "all"


def test_heterogeneity_has_all_nine_cases_once_and_holds_out_the_same_share() -> None:
    cells = REPRODUCTIONS["thesis-heterogeneity"].cells(Scale())
    conditions = {c.labels["condition"] for c in cells} - {"every other an MLP"}
    assert {f"case {figure}" for figure in CASES if figure != "7e"} < conditions and len(conditions) == 14
    assert {"alpha 0.3 (case 7e)", "alpha 0.01"} < conditions
    assert {(c.config.evaluation.validation, c.config.federation.seeds) for c in cells} == {(0.2, 10)}
    (control,) = (c for c in cells if dict(c.labels) == {"condition": "case 7a", "row": "independent:batch_order=1"})
    assert (control.config.method.name, control.config.method.settings) == ("independent", {"batch_order": 1})
    assert all(c.config.evaluation.validation == 0 for c in REPRODUCTIONS["thesis-asynchrony"].cells(Scale()))


def test_growth_has_as_many_images_per_learner() -> None:
    cells = REPRODUCTIONS["thesis-growth"].cells(Scale())
    found = {(c.config.federation.learners, c.config.data.train, c.config.training.rounds) for c in cells}
    assert found == {(2, 240, 100), (10, 1200, 100), (50, 6000, 100), (200, 24_000, 100)} and len(cells) == 16


def test_frontier_names_encodings_as_they_are() -> None:
    cells = REPRODUCTIONS["frontier"].cells(Scale(precision="bf16"))
    methods = {(c.labels["task"], c.labels["row"]): c.config.method for c in cells}
    weights = {(m.name, m.settings["up"], m.settings["down"]) for m in methods.values() if "up" in m.settings}
    assert len(weights) == 8 + 4 and {(task) for task, _ in methods} == {"MNIST", "CIFAR-10"}
    default = methods["CIFAR-10", "representations + weights, 1 bit up, 4 down"]
    assert default.settings == {"up": "bit", "down": "int4", "every": 1}
    assert methods["MNIST", "representations + weights, 1 bit up, 4 down, every 2"].settings["every"] == 2
    assert methods["MNIST", "weights, 8 bits up and down"].name == "fedavg"
    cifar = next(c.config for c in cells if c.labels["task"] == "CIFAR-10")
    assert (cifar.training.rounds, cifar.federation.seeds, cifar.execution.precision) == (20, 2, "bf16")


def test_message_sizes_match_the_published_ratios() -> None:
    """About 1000 and 2000 times less; the default method sends at most a thirtieth with the large models."""
    ratios = {}
    for model, shape in (("resnet9", (1, 28, 28)), ("resnet18", (3, 32, 32))):
        full = message_bytes("fedavg", model, shape)["up"]
        ratios[model] = full / message_bytes("representation-sharing", model, shape)["up"]
        assert full / message_bytes("consilience", model, shape)["up"] > 30
    assert 900 < ratios["resnet9"] < 1000 and 2000 < ratios["resnet18"] < 2300


# --- running


def tiny_reproduction(told: list[int]) -> Reproduction:
    def cells(scale: Scale) -> list[Cell]:
        return [
            Cell({"row": name}, SMALL | scale.settings(2) | {"method": {"name": name}})
            for name in ("independent", "fedavg")
        ]

    def show(outcomes: Sequence[Outcome]) -> list[ResultSection]:
        told.append(len(outcomes))
        return [ResultSection("Rows", table=[dict(o.labels) for o in outcomes], name="rows")]

    return Reproduction("tiny", "for tests", cells, show)


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    rounds: list[str] = []

    def record_name(name: str, *others: Any) -> None:
        rounds.append(name)

    run_reproduction(tiny_reproduction([]), Scale(), tmp_path, record_name)
    assert rounds == ["independent"] * 2 + ["fedavg"] * 2
    results = json.loads((tmp_path / "results.json").read_text())
    assert [cell["row"] for cell in results["cells"]] == ["independent", "fedavg"]
    assert results["tables"]["rows"] == [{"row": "independent"}, {"row": "fedavg"}]
    run_reproduction(tiny_reproduction([]), Scale(), tmp_path, record_name)
    assert len(rounds) == 4, "nothing is run twice"
    run_reproduction(tiny_reproduction([]), Scale(seeds=1), tmp_path, record_name)
    assert len(rounds) == 8, "other settings are other cells"
    assert not list(tmp_path.rglob("checkpoint*")), "nobody will look at what the learners have become"


def test_interrupted_reproduction_resumes(tmp_path: Path) -> None:
    def stop(name: str, round_: int, *others: Any) -> None:
        if (name, round_) == ("fedavg", 1):
            raise KeyboardInterrupt

    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_reproduction(tiny_reproduction(told), Scale(), tmp_path, stop)
    assert not told and not (tmp_path / "results.json").exists()
    found = run_reproduction(tiny_reproduction(told), Scale(), tmp_path, saved_only=True)
    assert (
        told == [1] and found.missing == [{"row": "fedavg"}] and found.sections[0].heading == "1 of 2 cells are missing"
    )
    assert json.loads((tmp_path / "results.json").read_text())["missing"] == [{"row": "fedavg"}]
    seen: list[str] = []
    run_reproduction(tiny_reproduction(told), Scale(), tmp_path, lambda name, *others: seen.append(name))
    assert told == [1, 2] and set(seen) == {"fedavg"}


def test_saved_only_without_finished_cells_is_refused(tmp_path: Path) -> None:
    run_reproduction(tiny_reproduction([]), Scale(seeds=1), tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(ConfigurationError, match="has no finished cell of tiny under these settings"):
        run_reproduction(tiny_reproduction([]), Scale(seeds=2), tmp_path, saved_only=True)
    with pytest.raises(ConfigurationError, match="has no finished cell"):
        run_reproduction(tiny_reproduction([]), Scale(), tmp_path / "nowhere", saved_only=True)
    assert (tmp_path / "results.json").read_bytes() == before and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("damage", ["{", '{"finished": true}'])
def test_damaged_cell_counts_as_missing(tmp_path: Path, damage: str) -> None:
    run_reproduction(tiny_reproduction([]), Scale(seeds=1), tmp_path)
    (place,) = (tmp_path / "cells").glob("fedavg-*")
    (place / "result.json").write_text(damage)
    (tmp_path / "cells.jsonl").unlink()
    assert run_reproduction(tiny_reproduction([]), Scale(seeds=1), tmp_path, saved_only=True).missing == [
        {"row": "fedavg"}
    ]


def test_results_list_unselected_cells_as_missing(tmp_path: Path) -> None:
    assert not run_reproduction(tiny_reproduction([]), Scale(seeds=1, only=[("row", "fedavg")]), tmp_path).missing
    assert json.loads((tmp_path / "results.json").read_text())["missing"] == [{"row": "independent"}]


def test_finished_cell_without_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    """It has no models to continue from, and its result is kept."""
    run_reproduction(tiny_reproduction([]), Scale(seeds=1), tmp_path)
    (place,) = (tmp_path / "cells").glob("fedavg-*")
    with pytest.raises(CheckpointError, match="is finished and has no checkpoint"):
        simulate(resume=place)
    assert json.loads((place / "result.json").read_text())["finished"]


def test_changed_method_default_changes_the_cell_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell({"row": "x"}, SMALL | {"method": {"name": "fedproto"}})
    before = cell.name
    monkeypatch.setitem(METHODS, "fedproto", lambda kd=3.0, encoding="float32": ())
    assert cell.name != before
    assert cell.name == Cell({"row": "x"}, SMALL | {"method": {"name": "fedproto", "kd": "3.0"}}).name


def test_cell_name_depends_on_its_settings() -> None:
    one = Cell({"row": "a b/c"}, SMALL)
    assert one.name.startswith("a-b-c-") and one.name == Cell({"row": "a b/c"}, SMALL | {"device": "cpu"}).name
    assert one.name != Cell({"row": "a b/c"}, SMALL | {"lr": 0.01}).name
    assert one.name == Cell({"row": "a b/c"}, SMALL | {"device": "cuda", "engine": "loop"}).name
    assert one.name != Cell({"row": "a b/c"}, SMALL | {"precision": "bf16"}).name
    assert list(run_cells([], Path("nowhere"))) == []


def test_only_selected_cells_are_run(tmp_path: Path) -> None:
    shown = run_reproduction(tiny_reproduction([]), Scale(only=[("row", "fedavg")]), tmp_path).sections
    assert shown[0].table == [{"row": "fedavg"}]
    both = run_reproduction(
        tiny_reproduction([]), Scale(only=[("row", "fedavg"), ("row", "independent")]), tmp_path
    ).sections
    assert both[0].table == [{"row": "independent"}, {"row": "fedavg"}]
    with pytest.raises(UnknownName, match=r"unknown row 'fedavgg' of tiny\. Did you mean 'fedavg'"):
        run_reproduction(tiny_reproduction([]), Scale(only=[("row", "fedavgg")]), tmp_path)
    with pytest.raises(UnknownName, match="unknown label 'rwo'"):
        run_reproduction(tiny_reproduction([]), Scale(only=[("rwo", "fedavg")]), tmp_path)


SOME: dict[str, list[tuple[str, str]]] = {
    "thesis-table1": [("task", "MNIST"), ("learners", "2")],
    "thesis-ablation": [],
    "thesis-curves": [],
    "thesis-tsne": [("row", "representation-sharing")],
    "thesis-communication": [],
    "thesis-heterogeneity": [("condition", "case 7d")],
    "thesis-asynchrony": [("condition", "offline 0.5"), ("condition", "all but the same two offline")],
    "thesis-growth": [("learners", "2")],
    "frontier": [("task", "MNIST")],
    "thesis-observations": [("row", "as published"), ("row", "n_avg 1"), ("row", "discriminator exponential-mlp")],
    "thesis-classes": [("condition", "5 classes"), ("condition", "2 classes")],
}


@pytest.mark.parametrize("name", list(SOME))
def test_reproduction_writes_tables_figures_and_a_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the whole reproduction on a small task instead of MNIST."""
    monkeypatch.setitem(TASKS, "MNIST", {"data": "digits", "model": "mlp", "train": 100, "rounds": 2})
    wanted = REPRODUCTIONS[name]
    shown = run_reproduction(wanted, Scale(seeds=1, only=SOME[name]), tmp_path).sections
    assert shown and all(section.table for section in shown)
    page = write_reproduction_page(wanted, shown, tmp_path, f"consilience reproduce {name}").read_text(encoding="utf-8")
    assert all(escape(section.heading) in page for section in shown)
    drawn = {path.suffix for path in (tmp_path / "figures").iterdir()}
    assert drawn == ({".svg", ".png"} if any(section.figure for section in shown) else set())


def test_table1_shows_published_beside_measured_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "MNIST", {"data": "digits", "model": "mlp", "train": 100, "rounds": 1})
    shown = run_reproduction(
        REPRODUCTIONS["thesis-table1"], Scale(seeds=2, only=SOME["thesis-table1"]), tmp_path
    ).sections
    rows = {row["method"]: row for row in shown[0].table}
    assert rows["representation-sharing"]["N=2 published"] == 94.19
    assert rows["self-distillation"]["N=2 published"] is None
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d", rows["consilience"]["N=2"]) and "N=10" not in rows["consilience"]
    (against,) = shown[1].table
    assert against["best published"] == 94.45 and against["of fedavg's bytes"].startswith("1/")


# --- the command


def test_command_lists_reproductions_and_refuses_unknown_names(command: Command) -> None:
    code, out, _ = command("reproduce", "--list")
    assert code == 0 and all(name in out for name in REPRODUCTIONS)
    code, _, err = command("reproduce", "thesis-table2")
    assert code == 2 and "Did you mean 'thesis-table1'" in err


def test_command_prints_communication_ratios(command: Command) -> None:
    code, out, err = command("reproduce", "thesis-communication", "--out", "mine")
    assert code == 0 and "935.2" in out and "2172.5" in out and "saved in mine" in err
    assert json.loads(Path("mine/results.json").read_text())["name"] == "thesis-communication"
