"""Published tables and figures: their cells, running and finding them again, and what is told."""

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
from consilience.papers.run import run_reproduction, write_reproduction_page
from consilience.papers.thesis.communication import message_bytes
from consilience.papers.thesis.published import TABLE1, TASKS, best_published, published
from consilience.papers.thesis.table1 import ROWS

Command = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {"train": 40, "test": 20, "learners": 2, "rounds": 2, "workers": 0}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", list(REPRODUCTIONS))
def test_every_cell_is_a_run_that_could_be(name: str, quick: bool) -> None:
    cells = REPRODUCTIONS[name].cells(Scale(quick=quick))
    for cell in cells:
        build_method(cell.config.method.name, cell.config.method.settings)
    assert len({cell.name for cell in cells}) == len(cells)
    assert all(cell.config.federation.seeds == 1 for cell in cells if quick)


def test_the_table_has_the_published_settings() -> None:
    cells = REPRODUCTIONS["thesis-table1"].cells(Scale(device="cuda", seeds=3))
    assert len(cells) == 3 * (3 * len(ROWS) - 2)  # centralized once a task
    by_task = {cell.labels["task"]: cell.config for cell in cells}
    assert {t: (c.model.name, c.data.train, c.training.rounds, c.federation.seeds) for t, c in by_task.items()} == {
        "MNIST": ("lenet5", 1200, 100, 3),
        "Fashion-MNIST": ("resnet9", 6000, 20, 3),
        "CIFAR-10": ("resnet18", 10_000, 20, 3),
    }
    trainings = [config.training for config in by_task.values()]
    assert all((t.batch_size, t.lr, t.optimizer) == (32, 1e-3, "adam") for t in trainings)


def test_what_was_published() -> None:
    assert published("representation-sharing", "MNIST", 10) == 82.07
    assert published("consilience", "MNIST", 10) is None
    assert best_published("Fashion-MNIST", 5) == 89.28 and best_published("MNIST", 2) == 94.45
    assert set(TABLE1) <= set(ROWS)


def test_the_ablation_is_one_run_of_64_settings() -> None:
    (cell,) = REPRODUCTIONS["thesis-ablation"].cells(Scale())
    assert len(cell.config.variants) == 64 and {"method.kd": 10, "method.contrast": 0.5} in cell.config.variants


def test_heterogeneity_has_all_nine_cases() -> None:
    conditions = {c.labels["condition"] for c in REPRODUCTIONS["thesis-heterogeneity"].cells(Scale())}
    assert {f"case {figure}" for figure in CASES} < conditions and "alpha 0.01" in conditions


def test_volumes_beside_the_claims() -> None:
    """About 1000 and 2000 times less, and the default method at most a thirtieth for the large models."""
    ratios = {}
    for model, shape in (("resnet9", (1, 28, 28)), ("resnet18", (3, 32, 32))):
        full = message_bytes("fedavg", model, shape)["up"]
        ratios[model] = full / message_bytes("representation-sharing", model, shape)["up"]
        assert full / message_bytes("consilience", model, shape)["up"] > 30
    assert 900 < ratios["resnet9"] < 1000 and 2000 < ratios["resnet18"] < 2300


# --- running


def tiny(told: list[int]) -> Reproduction:
    def cells(scale: Scale) -> list[Cell]:
        return [
            Cell({"row": name}, SMALL | scale.settings(2) | {"method": {"name": name}})
            for name in ("independent", "fedavg")
        ]

    def show(outcomes: Sequence[Outcome]) -> list[ResultSection]:
        told.append(len(outcomes))
        return [ResultSection("Rows", table=[dict(o.labels) for o in outcomes], name="rows")]

    return Reproduction("tiny", "for tests", cells, show)


def test_cells_are_run_once_and_found_again(tmp_path: Path) -> None:
    rounds: list[str] = []

    def note(name: str, *others: Any) -> None:
        rounds.append(name)

    run_reproduction(tiny([]), Scale(), tmp_path, note)
    assert rounds == ["independent"] * 2 + ["fedavg"] * 2
    results = json.loads((tmp_path / "results.json").read_text())
    assert [cell["row"] for cell in results["cells"]] == ["independent", "fedavg"]
    assert results["tables"]["rows"] == [{"row": "independent"}, {"row": "fedavg"}]
    run_reproduction(tiny([]), Scale(), tmp_path, note)
    assert len(rounds) == 4, "nothing is run twice"
    run_reproduction(tiny([]), Scale(seeds=1), tmp_path, note)
    assert len(rounds) == 8, "other settings are other cells"
    assert not list(tmp_path.rglob("checkpoint*")), "nobody will look at what the learners have become"


def test_what_was_stopped_goes_on(tmp_path: Path) -> None:
    def stop(name: str, round_: int, *others: Any) -> None:
        if (name, round_) == ("fedavg", 1):
            raise KeyboardInterrupt

    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_reproduction(tiny(told), Scale(), tmp_path, stop)
    assert not told and not (tmp_path / "results.json").exists()
    found = run_reproduction(tiny(told), Scale(), tmp_path, saved_only=True)
    assert (
        told == [1] and found.missing == [{"row": "fedavg"}] and found.sections[0].heading == "1 of 2 cells are missing"
    )
    assert json.loads((tmp_path / "results.json").read_text())["missing"] == [{"row": "fedavg"}]
    seen: list[str] = []
    run_reproduction(tiny(told), Scale(), tmp_path, lambda name, *others: seen.append(name))
    assert told == [1, 2] and set(seen) == {"fedavg"}


def test_what_is_kept_is_shown_and_nothing_else_touched(tmp_path: Path) -> None:
    run_reproduction(tiny([]), Scale(seeds=1), tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(ConfigurationError, match="has no finished cell of tiny under these settings"):
        run_reproduction(tiny([]), Scale(seeds=2), tmp_path, saved_only=True)
    with pytest.raises(ConfigurationError, match="has no finished cell"):
        run_reproduction(tiny([]), Scale(), tmp_path / "nowhere", saved_only=True)
    assert (tmp_path / "results.json").read_bytes() == before and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("damage", ["{", '{"finished": true}'])
def test_a_damaged_cell_is_missing(tmp_path: Path, damage: str) -> None:
    run_reproduction(tiny([]), Scale(seeds=1), tmp_path)
    (place,) = (tmp_path / "cells").glob("fedavg-*")
    (place / "result.json").write_text(damage)
    assert run_reproduction(tiny([]), Scale(seeds=1), tmp_path, saved_only=True).missing == [{"row": "fedavg"}]


def test_cells_that_were_not_asked_for_are_missing_from_the_results(tmp_path: Path) -> None:
    assert not run_reproduction(tiny([]), Scale(seeds=1, only=[("row", "fedavg")]), tmp_path).missing
    assert json.loads((tmp_path / "results.json").read_text())["missing"] == [{"row": "independent"}]


def test_a_finished_cell_is_not_begun_anew(tmp_path: Path) -> None:
    """It keeps no models, so there is nothing to go on with; and what it came to is not lost."""
    run_reproduction(tiny([]), Scale(seeds=1), tmp_path)
    (place,) = (tmp_path / "cells").glob("fedavg-*")
    with pytest.raises(CheckpointError, match="is finished and has no checkpoint"):
        simulate(resume=place)
    assert json.loads((place / "result.json").read_text())["finished"]


def test_another_default_is_another_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell({"row": "x"}, SMALL | {"method": {"name": "fedproto"}})
    before = cell.name
    monkeypatch.setitem(METHODS, "fedproto", lambda kd=3.0, encoding="float32": ())
    assert cell.name != before
    assert cell.name == Cell({"row": "x"}, SMALL | {"method": {"name": "fedproto", "kd": "3.0"}}).name


def test_a_cell_of_its_own_is_known_by_its_settings() -> None:
    one = Cell({"row": "a b/c"}, SMALL)
    assert one.name.startswith("a-b-c-") and one.name == Cell({"row": "a b/c"}, SMALL | {"device": "cpu"}).name
    assert one.name != Cell({"row": "a b/c"}, SMALL | {"lr": 0.01}).name
    assert list(run_cells([], Path("nowhere"))) == []


def test_some_cells_alone(tmp_path: Path) -> None:
    shown = run_reproduction(tiny([]), Scale(only=[("row", "fedavg")]), tmp_path).sections
    assert shown[0].table == [{"row": "fedavg"}]
    both = run_reproduction(tiny([]), Scale(only=[("row", "fedavg"), ("row", "independent")]), tmp_path).sections
    assert both[0].table == [{"row": "independent"}, {"row": "fedavg"}]
    with pytest.raises(UnknownName, match=r"unknown row 'fedavgg' of tiny\. Did you mean 'fedavg'"):
        run_reproduction(tiny([]), Scale(only=[("row", "fedavgg")]), tmp_path)
    with pytest.raises(UnknownName, match="unknown label 'rwo'"):
        run_reproduction(tiny([]), Scale(only=[("rwo", "fedavg")]), tmp_path)


SOME: dict[str, list[tuple[str, str]]] = {
    "thesis-table1": [("task", "MNIST"), ("learners", "2")],
    "thesis-ablation": [],
    "thesis-curves": [],
    "thesis-tsne": [("round", "1")],
    "thesis-communication": [],
    "thesis-heterogeneity": [("condition", "case 7d")],
    "thesis-asynchrony": [("condition", "offline 0.5")],
    "frontier": [],
}


@pytest.mark.parametrize("name", list(SOME))
def test_each_shows_what_it_found_and_draws_its_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way on a task of seconds in the place of MNIST."""
    monkeypatch.setitem(TASKS, "MNIST", {"data": "digits", "model": "mlp", "train": 100, "rounds": 2})
    wanted = REPRODUCTIONS[name]
    shown = run_reproduction(wanted, Scale(seeds=1, only=SOME[name]), tmp_path).sections
    assert shown and all(section.table for section in shown)
    page = write_reproduction_page(wanted, shown, tmp_path, f"consilience reproduce {name}").read_text(encoding="utf-8")
    assert all(escape(section.heading) in page for section in shown)
    drawn = {path.suffix for path in (tmp_path / "figures").iterdir()}
    assert drawn == ({".svg", ".png"} if any(section.figure for section in shown) else set())


def test_the_table_says_what_was_published_beside_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_command_lists_and_refuses(command: Command) -> None:
    code, out, _ = command("reproduce", "--list")
    assert code == 0 and all(name in out for name in REPRODUCTIONS)
    code, _, err = command("reproduce", "thesis-table2")
    assert code == 2 and "Did you mean 'thesis-table1'" in err


def test_the_command_counts_what_travels(command: Command) -> None:
    code, out, err = command("reproduce", "thesis-communication", "--out", "mine")
    assert code == 0 and "929.7" in out and "2166.8" in out and "saved in mine" in err
    assert json.loads(Path("mine/results.json").read_text())["name"] == "thesis-communication"
