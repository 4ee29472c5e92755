"""Finished cells in `cells.jsonl`: they are neither run again nor need their run folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consilience.errors import CheckpointError, ConfigurationError
from consilience.papers import Cell, Outcome, Reproduction, ResultSection, Scale, cells, run_cells
from consilience.papers.finished_cells import FINISHED, compact_summary, read_finished, save_finished
from consilience.papers.metrics_by_round import record_by_round, record_samples
from consilience.papers.run import run_reproduction
from consilience.papers.thesis.published import TASKS
from consilience.simulation.planned_run import PlannedRun

Command = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {"train": 40, "test": 20, "learners": 2, "rounds": 1, "workers": 0}
FULL: dict[str, Any] = {
    "method": "fedavg",
    "settings": {"every": 2},
    "rounds": 3,
    "seed": 0,
    "seeds": 2,
    "engine": "stack",
    "peak_memory_mb": 812.0,
    "accuracy": {"mean": 87.123456, "std_seeds": 1.23456, "worst": 80.0, "by_seed": [86.111111, 88.135801]},
    "accuracy_own": {"mean": 90.0, "std_seeds": None, "by_seed": [float("nan")], "by_learner": [[90.1234, None]]},
    "accuracy_validation": {"mean": None, "std_seeds": None, "by_seed": []},
    "bytes": {"up": 1012.346, "down": 20.0},
    "message_bytes": {"up": 2000, "down": 40},
    "seconds": {"total": 12.3456, "train": 10.0},
    "groups": {"mlp": {"learners": [1], "accuracy": {"mean": 70.55556, "std_seeds": None}, "bytes": {"up": 1.0}}},
    "variants": [{"set": {"method.kd": 1}, "accuracy": {"mean": 1.00004, "worst": 0}, "method": "fedavg"}],
    "finished": True,
    "run": "/home/me/cells/x",
}


def tiny(keep_models: bool = False, reads_folder: bool = False) -> Reproduction:
    def cells(scale: Scale) -> list[Cell]:
        return [
            Cell({"row": name}, SMALL | scale.settings(1) | {"method": {"name": name}}, keep_models, reads_folder)
            for name in ("independent", "fedavg")
        ]

    def sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
        rows = [{**o.labels, "accuracy": o.summary["accuracy"], "own": o.summary["accuracy_own"]} for o in outcomes]
        return [ResultSection("Rows", table=rows, name="rows")]

    return Reproduction("tiny", "for tests", cells, sections)


def refuse_to_run(*others: Any) -> None:
    raise AssertionError("a finished cell is run again")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny reproduction that has been run."""
    folder = tmp_path_factory.mktemp("finished")
    run_reproduction(tiny(), Scale(), folder)
    return folder


def copy_lines(source: Path, folder: Path, change: Callable[[list[str]], list[str]] = list) -> Path:
    """Copy only `cells.jsonl` to a new folder, after a change of its lines."""
    folder.mkdir(exist_ok=True)
    lines = (source / FINISHED).read_text().splitlines()
    (folder / FINISHED).write_text("".join(f"{line}\n" for line in change(lines)))
    return folder


def test_compact_summary_keeps_what_tables_need() -> None:
    assert compact_summary(FULL) == {
        "method": "fedavg",
        "settings": {"every": 2},
        "rounds": 3,
        "seed": 0,
        "seeds": 2,
        "accuracy": {"mean": 87.1235, "std_seeds": 1.2346, "by_seed": [86.1111, 88.1358]},
        "accuracy_own": {"mean": 90.0, "std_seeds": None, "by_seed": [None], "by_learner": [[90.12, None]]},
        "accuracy_validation": {"mean": None, "std_seeds": None, "by_seed": []},
        "bytes": {"up": 1012.35, "down": 20.0},
        "message_bytes": {"up": 2000, "down": 40},
        "seconds": {"total": 12.35},
        "groups": {"mlp": {"learners": [1], "accuracy": {"mean": 70.5556, "std_seeds": None}, "bytes": {"up": 1.0}}},
        "variants": [{"set": {"method.kd": 1}, "accuracy": {"mean": 1.0}}],
        "finished": True,
    }
    assert compact_summary(compact_summary(FULL)) == compact_summary(FULL)


def test_the_file_alone_shows_the_same_tables(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.loads(line) for line in (finished / FINISHED).read_text().splitlines()]
    assert [line["labels"] for line in lines] == [{"row": "independent"}, {"row": "fedavg"}]
    assert [line["name"] for line in lines] == [cell.name for cell in tiny().cells(Scale())]
    monkeypatch.setattr(PlannedRun, "run", refuse_to_run)
    shown = run_reproduction(tiny(), Scale(), finished, saved_only=True).sections
    alone = copy_lines(finished, tmp_path)
    for saved_only in (True, False):
        found = run_reproduction(tiny(), Scale(), alone, saved_only=saved_only)
        assert not found.missing and found.sections[0].table == shown[0].table
    assert {path.name for path in alone.iterdir()} == {FINISHED, "results.json"}
    assert (alone / FINISHED).read_bytes() == (finished / FINISHED).read_bytes()


def test_only_missing_cells_are_run(finished: Path, tmp_path: Path) -> None:
    folder, seen = copy_lines(finished, tmp_path, lambda lines: lines[1:]), list[str]()
    run_reproduction(tiny(), Scale(), folder, lambda name, *others: seen.append(name))
    assert seen == ["independent"]
    names = [json.loads(line)["name"] for line in (folder / FINISHED).read_text().splitlines()]
    assert names == [cell.name for cell in tiny().cells(Scale())], "in the order of the cells"


@pytest.mark.parametrize("needs", ["keep_models", "reads_folder"])
def test_cell_that_needs_its_folder_is_run_without_it(finished: Path, tmp_path: Path, needs: str) -> None:
    folder, seen = copy_lines(finished, tmp_path), list[str]()
    wanted = tiny(**{needs: True})
    with pytest.raises(ConfigurationError, match="has no finished cell of tiny"):
        run_reproduction(wanted, Scale(), folder, saved_only=True)
    run_reproduction(wanted, Scale(only=[("row", "fedavg")]), folder, lambda name, *others: seen.append(name))
    assert seen == ["fedavg"]
    run_reproduction(wanted, Scale(only=[("row", "fedavg")]), folder, lambda name, *others: seen.append(name))
    assert seen == ["fedavg"], "its folder is there now"


# --- records


def with_records(*names: str) -> Reproduction:
    """Reproductions whose sections need records of the run folder, one for each name."""
    known = {"losses": record_by_round("loss.cross_entropy"), "samples": record_samples}

    def cells(scale: Scale) -> list[Cell]:
        found = tiny().cells(scale)
        return [replace(cell, keep_models=True, records={name: known[name] for name in names}) for cell in found]

    def sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
        rows = [{**o.labels, **o.records, "method": o.config.method.name} for o in outcomes]
        return [ResultSection("Rows", table=rows, name="rows")]

    return Reproduction("tiny", "for tests", cells, sections)


def test_records_are_kept_in_the_file_and_need_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = with_records("losses"), with_records("losses", "samples")
    ran = run_reproduction(first, Scale(), tmp_path / "ran")
    again = run_reproduction(second, Scale(), tmp_path / "ran", saved_only=True)
    row = again.sections[0].table[0]
    assert row["samples"] == {"train": 40, "test": 20} and row["method"] == "independent"
    assert [round_ for round_, _ in row["losses"]] == [1] and len(row["losses"][0][1]) == 2, "one of each learner"
    assert ran.sections[0].table[0].keys() == {"row", "losses", "method"}
    monkeypatch.setattr(PlannedRun, "run", refuse_to_run)
    alone = copy_lines(tmp_path / "ran", tmp_path / "alone")
    for wanted, shown in ((first, ran), (second, again)):
        found = run_reproduction(wanted, Scale(), alone, saved_only=True)
        assert not found.missing and found.sections[0].table == shown.sections[0].table
    run_reproduction(first, Scale(), tmp_path / "ran", saved_only=True)
    lines = read_finished(tmp_path / "ran").values()
    assert all(line["records"].keys() == {"losses", "samples"} for line in lines), "the other one's records stay"


def test_line_without_a_record_is_not_enough(finished: Path, tmp_path: Path) -> None:
    folder, seen = copy_lines(finished, tmp_path), list[str]()
    with pytest.raises(ConfigurationError, match="has no finished cell of tiny"):
        run_reproduction(with_records("samples"), Scale(), folder, saved_only=True)
    run_reproduction(with_records("samples"), Scale(), folder, lambda name, *others: seen.append(name))
    assert seen == ["independent", "fedavg"]


def test_line_replaces_a_run_folder_without_the_files_of_its_records(tmp_path: Path) -> None:
    wanted = with_records("samples")
    shown = run_reproduction(wanted, Scale(), tmp_path).sections[0].table
    for place in (tmp_path / "cells").iterdir():
        (place / "data.json").unlink()
    assert run_reproduction(wanted, Scale(), tmp_path).sections[0].table == shown
    (tmp_path / FINISHED).unlink()
    with pytest.raises(CheckpointError, match=r"data\.json cannot be read"):
        run_reproduction(wanted, Scale(), tmp_path)


def test_new_setting_of_a_method_at_its_default_leaves_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(**settings: Any) -> str:
        return Cell({"row": "x"}, {"method": {"name": "fedavg", **settings}}).name

    before, other = name(), name(every=2)
    monkeypatch.setattr(cells, "_ADDED_TO_METHODS", {"every": "1"})
    assert name() == name(every=1) != before, "the fingerprint is that of a method without the setting"
    assert name(every=2) == other


def test_lines_of_other_cells_are_kept(finished: Path, tmp_path: Path) -> None:
    other = json.dumps({"name": "other-1", "labels": {"row": "other"}, "summary": compact_summary(FULL)})
    folder = copy_lines(finished, tmp_path, lambda lines: [other, lines[0]])
    run_reproduction(tiny(), Scale(only=[("row", "fedavg")]), folder)
    names = [cell.name for cell in tiny().cells(Scale())]
    assert list(read_finished(folder)) == [*names, "other-1"]


def test_finished_folder_without_the_file_gets_one(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "cells", tmp_path / "cells")
    run_reproduction(tiny(), Scale(), tmp_path, saved_only=True)
    assert (tmp_path / FINISHED).read_bytes() == (finished / FINISHED).read_bytes()


def test_line_replaces_a_damaged_result(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(finished, tmp_path / "x")
    (place,) = (tmp_path / "x" / "cells").glob("fedavg-*")
    (place / "result.json").write_text("{")
    monkeypatch.setattr(PlannedRun, "run", refuse_to_run)
    assert not run_reproduction(tiny(), Scale(), tmp_path / "x").missing
    (tmp_path / "x" / FINISHED).unlink()
    with pytest.raises(CheckpointError, match=r"result\.json is damaged"):
        run_reproduction(tiny(), Scale(), tmp_path / "x")


def test_interrupted_reproduction_keeps_the_lines_of_finished_cells(tmp_path: Path) -> None:
    def stop(name: str, *others: Any) -> None:
        if name == "fedavg":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_reproduction(tiny(), Scale(), tmp_path, stop)
    (line,) = read_finished(tmp_path).values()
    assert line["labels"] == {"row": "independent"} and not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        ('{"name": "x", "labels": {}}', "it has no 'summary'"),
        ('{"name": 1, "labels": {}, "summary": {}}', "it names no cell"),
        ('{"name": "x", "labels": {}, "summary": {"finished": false}}', "it has no result of a finished cell"),
        (
            '{"name": "x", "labels": {}, "summary": {"finished": true, "accuracy": {}}, "records": []}',
            "its records are not an object",
        ),
        ("\udcff", "can't decode byte"),
    ],
)
def test_damaged_line_is_named(finished: Path, tmp_path: Path, damage: str, what: str) -> None:
    copy_lines(finished, tmp_path)
    with (tmp_path / FINISHED).open("ab") as file:
        file.write(damage.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=rf"cells\.jsonl, line 3 is damaged: .*{what}.*; restore the file, or"):
        run_reproduction(tiny(), Scale(), tmp_path, saved_only=True)


def test_later_line_of_the_same_cell_counts(tmp_path: Path) -> None:
    line = {"name": "x", "labels": {}, "summary": compact_summary(FULL)}
    save_finished(tmp_path, {**line, "labels": {"old": 1}}, ["x"])
    save_finished(tmp_path, line, ["x"])
    assert read_finished(tmp_path) == {"x": line} and not list(tmp_path.glob("*.new"))


def test_command_shows_saved_cells_from_the_file_alone(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "MNIST", {"data": "digits", "model": "mlp", "rounds": 1})
    words = ("reproduce", "thesis-growth", "--seeds", "1", "--only", "learners=2", "--only", "row=independent")
    code, ran, _ = command(*words, "--only", "row=fedavg", "--out", "run")
    assert code == 0
    copy_lines(Path("run"), Path("alone"))
    monkeypatch.setattr(PlannedRun, "run", refuse_to_run)
    code, shown, err = command(*words, "--only", "row=fedavg", "--out", "alone", "--saved")
    assert code == 0 and shown == ran and "fedavg" in shown and "the page is alone/index.html" in err


def test_a_cell_with_the_settings_of_a_finished_one_is_not_run_again(tmp_path: Path, monkeypatch: Any) -> None:
    first = [Cell({"row": "a"}, SMALL | {"method": {"name": "independent"}})]
    other = [Cell({"table": "x", "row": "b"}, first[0].settings)]
    ((_, ran),) = run_cells(first, tmp_path)
    assert ran is not None
    lines = read_finished(tmp_path)
    monkeypatch.setattr(PlannedRun, "run", refuse_to_run)
    ((_, read),) = run_cells(other, tmp_path)
    assert read is not None and read.labels == {"table": "x", "row": "b"}
    assert read.summary["accuracy"]["mean"] == lines[first[0].name]["summary"]["accuracy"]["mean"]
    assert read_finished(tmp_path) == lines, "the run is kept once"
