"""Two-stage learning's table and figures: the published settings, progress by hand, and runs on a small task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from consilience.config.config import make_config
from consilience.errors import CheckpointError, UnknownName
from consilience.papers import REPRODUCTIONS, Scale
from consilience.papers.cell_runs import run_cells
from consilience.papers.cells import Outcome, Reproduction
from consilience.papers.finished_cells import FINISHED
from consilience.papers.metrics_by_round import select_rounds
from consilience.papers.run import run_reproduction
from consilience.papers.two_stage.device_attacks import FILE, attacks_of
from consilience.papers.two_stage.experiment import (
    RECORDS,
    ROWS,
    LeakageSize,
    ModelSettings,
    NewcomerSize,
    TwoStageSize,
    TwoStageTask,
)
from consilience.papers.two_stage.figure4 import FIGURE4, NEWCOMER_ROWS, newcomer_progress
from consilience.papers.two_stage.figures2_3 import FIGURES2_3
from consilience.papers.two_stage.figures5_6 import FIGURES5_6
from consilience.papers.two_stage.progress import progress_of
from consilience.papers.two_stage.table1 import TABLE1
from consilience.papers.two_stage.table2 import PUBLISHED_TABLE, TABLE2, format_power
from consilience.simulation.records.run_folder import PROVENANCE
from tests.papers_tools import known_at_both_sizes, run_and_draw, tables_of

MLP, LENET5 = (ModelSettings("mlp", 1e-3), ModelSettings("mlp", 0.05)), ModelSettings("lenet5", 0.05)
SMALL = TwoStageTask(
    "digits",
    learners=4,
    participation=0.5,
    train=160,
    test=100,
    rounds=4,
    eval_every=2,
    split=MLP[0],
    whole=MLP[1],
    seeds=1,
)
TINY = TwoStageSize(
    {"digits": SMALL},
    NewcomerSize(
        TwoStageTask("digits", learners=3, partition="iid", participation=0.5, train=200, test=100, rounds=4,
             eval_every=1, split=MLP[0], whole=MLP[1], seeds=1),
        rounds_before=2,
        samples=40,
    ),
    LeakageSize(
        TwoStageTask("digits", learners=3, participation=0.7, train=150, test=80, rounds=2, eval_every=1, split=MLP[0],
             whole=LENET5),
        watched="features.conv1",
        alphas=(0.0, 0.9),
    ),
)  # fmt: skip
ALL: dict[str, Reproduction] = {
    experiment.name.removeprefix("two-stage-"): experiment.at_size(TINY, TINY)
    for experiment in (TABLE1, TABLE2, FIGURES2_3, FIGURE4, FIGURES5_6)
}
NAMES = [f"two-stage-{each}" for each in ALL]


# --- settings


def test_reproductions_are_registered_at_both_sizes() -> None:
    assert known_at_both_sizes("two-stage", NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_cells_are_valid_and_have_different_names(name: str, quick: bool) -> None:
    for size in ("", "-short"):
        cells = REPRODUCTIONS[f"{name}{size}"].cells(Scale(quick=quick))
        assert len({cell.name for cell in cells}) == len(cells) > 0


def test_table2_has_the_published_settings() -> None:
    """Section 4.1 of the paper: partition, participation and models."""
    cells = {(c.labels["data"], c.labels["row"]): c.config for c in REPRODUCTIONS["two-stage-table2"].cells(Scale())}
    assert list(cells) == [(data, row) for data in ("mnist", "cifar10", "shakespeare") for row in ROWS]
    assert {c.federation.participation for c in cells.values()} == {0.1}
    mnist, roles = cells["mnist", "two-stage"], cells["shakespeare", "fedavg"]
    assert (mnist.federation.learners, mnist.federation.partition) == (100, "shards(2)")
    assert (mnist.model.name, mnist.training.optimizer) == ("device-cnn-large", "adam")
    assert (mnist.data.train, mnist.data.test, mnist.training.batch_size) == (None, None, 10), "all 60,000 images"
    averaged = cells["mnist", "fedprox"]
    assert (averaged.model.name, averaged.training.optimizer, averaged.training.lr) == ("cnn", "sgd", 0.05)
    assert averaged.method.settings == {"mu": 0.01}
    assert (cells["cifar10", "fedavg"].model.name, cells["cifar10", "fedavg"].federation.partition) == (
        "cnn5-small",
        "iid",
    )
    assert cells["cifar10", "two-stage"].model.name == "device-cnn-medium"
    assert (roles.federation.learners, roles.federation.partition) == (133, "owners")
    assert (roles.model.name, roles.execution.engine) == ("lstm", "loop")
    assert {row: c.evaluation.ensemble for (data, row), c in cells.items() if data == "mnist"} == {
        "two-stage": "on",
        "two-stage-batch": "on",
        "two-stage-calibrated": "on",
        "two-stage-1bit": "off",
        "independent": "on",
        "fedavg": "off",
        "fedprox": "off",
    }
    assert cells["mnist", "independent"].model.name == "device-cnn-large", "the control has the same model"
    usual = {"alpha_1": 0.1, "alpha_2": 1.0, "lam": 1.0, "delta": 1e-3}
    assert {row: c.method.settings for (data, row), c in cells.items() if data == "mnist" and "two" in row} == {
        "two-stage": usual,
        "two-stage-batch": usual | {"inner": "batch", "delta": 2e-5},
        "two-stage-calibrated": usual | {"calibrated": True},
        "two-stage-1bit": usual | {"device": "1bit"},
    }
    assert {(data, c.federation.seeds) for (data, _), c in cells.items()} == {
        ("mnist", 3),
        ("cifar10", 3),
        ("shakespeare", 1),
    }


def test_table_and_curves_use_the_same_cells() -> None:
    for size in ("", "-short"):
        table, curves = (REPRODUCTIONS[f"two-stage-{each}{size}"].cells(Scale()) for each in ("table2", "curves"))
        assert [cell.name for cell in table] == [cell.name for cell in curves]


def test_settings_of_the_joining_device_and_watched_layers() -> None:
    for cell in REPRODUCTIONS["two-stage-universality"].cells(Scale()):
        ((who, (_, group)),) = cell.config.groups_by_learner().items()
        assert (who, cell.config.federation.learners, group.samples, group.shift) == (100, 101, 1000, "rotate(90)")
        assert group.participation == 1.0 and 1 < group.joins < cell.config.training.rounds
    watched = REPRODUCTIONS["two-stage-leakage"].cells(Scale(seeds=5))
    alphas = [c.config.method.settings["alpha_1"] for c in watched if c.config.evaluation.watch == "cut"]
    assert alphas == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 3, 10]
    assert [c.labels["row"] for c in watched if c.config.evaluation.watch == "features.0"] == ["fedavg", "fedprox"]
    assert all(c.keep_models and c.config.federation.seeds == 1 for c in watched), "models of one seed are looked at"


# --- by hand


def line(round_: int, learner: int, accuracy: float | None, sent: int = 0, **more: Any) -> dict[str, Any]:
    """A line of metrics of a participating learner that uploads and downloads `sent` values of four bytes."""
    moved = {"bytes": {"up": 4 * sent, "down": 4 * sent}, "values": {"up": sent, "down": sent}}
    usual = {"round": round_, "seed": 0, "learner": learner, "accuracy": accuracy, "participated": True}
    return usual | moved | more


def outcome_of(folder: Path, row: str, lines: Sequence[dict[str, Any]], data: str = "mnist") -> Outcome:
    place = folder / f"{data}-{row}"
    place.mkdir(parents=True)
    config = make_config(SMALL.settings(Scale(), row) | {"data": data})
    (place / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    (place / PROVENANCE).write_text(json.dumps({"data": {"test_samples": 7}, "class_counts": {"0": [[1, 2], [3, 4]]}}))
    (place / "metrics.jsonl").write_text("\n".join(json.dumps(each) for each in lines))
    outcome = Outcome({"data": data, "row": row}, {}, place, settings=SMALL.settings(Scale(), row) | {"data": data})
    return with_records(outcome, RECORDS)


def with_records(outcome: Outcome, wanted: Mapping[str, Callable[[Outcome], Any]]) -> Outcome:
    return replace(outcome, records={name: json.loads(json.dumps(read(outcome))) for name, read in wanted.items()})


def test_progress_uses_only_learners_that_participated(tmp_path: Path) -> None:
    lines = [
        line(0, 0, None, 0, participated=False),
        line(1, 0, 50.0, 10),
        line(1, 1, 10.0, 0, participated=False),
        line(2, 0, None, 10),  # not tested
        line(3, 0, 50.0, 0, participated=False),  # holds the model of round 1
        line(3, 1, 40.0, 20),
    ]
    course = progress_of(outcome_of(tmp_path, "fedavg", lines))
    assert course.accuracy == {1: (50.0,), 3: (40.0,)} and course.final == 40.0
    assert course.values == {1: 20, 3: 80} and course.bytes[3] == 320
    assert (course.reached(40), course.reached(50.1), course.before(3), course.before(1)) == (1, None, 50.0, None)


def test_progress_uses_ensemble_accuracy_if_measured(tmp_path: Path) -> None:
    lines = [
        line(1, 0, 99.0, accuracy_ensemble=None),  # no ensemble in this round
        line(2, 0, 20.0, accuracy_ensemble=90.0, accuracy_heads=80.0, accuracy_own=99.0),
        line(2, 1, 30.0, accuracy_ensemble=90.0, accuracy_heads=80.0, accuracy_own=97.0, participated=False),
        line(2, 0, 20.0, accuracy_ensemble=94.0, accuracy_heads=83.0, accuracy_own=98.0, seed=1),
    ]
    outcome = outcome_of(tmp_path, "two-stage", lines)
    course = progress_of(outcome)
    assert course.accuracy == {2: (90.0, 94.0)} and course.final == 92.0 and course.spread == pytest.approx(8**0.5)
    assert (course.heads, course.own) == (81.0, 98.0), "means over all who were tested"
    (row,) = TABLE2.sections([outcome])[0].table
    assert (row["accuracy"], row["own heads"], row["own classes"]) == ("92.00 ± 2.83", "81.00", "98.00")
    (point,) = course.curve()
    assert (point["low"], point["high"]) == (pytest.approx(92 - 8**0.5), pytest.approx(92 + 8**0.5))


def handmade_outcomes(folder: Path) -> list[Outcome]:
    """fedavg ends at 80, two-stage-1bit at 70, which is the level; independent devices never reach it."""
    asked = [
        (row, [line(r, 0, 1.0, sent, accuracy_ensemble=reached) for r, reached in course])
        for row, sent, course in (("two-stage", 1, ((1, 60.0), (2, 70.0))), ("independent", 0, ((1, 50.0), (2, 55.0))))
    ]
    averaged = [line(1, 0, 75.0, 50), line(2, 0, 80.0, 50)]
    voted = [line(1, 0, 60.0, 5), line(2, 0, 70.0, 5)]
    others = [outcome_of(folder, "two-stage-1bit", voted), outcome_of(folder, "fedavg", averaged)]
    return [outcome_of(folder, *asked[0]), *others, outcome_of(folder, *asked[1])]


def test_table2_shows_published_values_by_hand(tmp_path: Path) -> None:
    ended, traveled, levelled = TABLE2.sections(handmade_outcomes(tmp_path))
    rows = {row["method"]: row for row in ended.table}
    assert rows["two-stage"] == {
        "data": "mnist",
        "method": "two-stage",
        "accuracy": "70.00",
        "published": 97.93,
        "own heads": None,
        "own classes": None,
        "rounds": 2,
        "rounds published": 437,
    }
    sent = {row["method"]: row for row in traveled.table}
    assert sent["two-stage"] == {
        "data": "mnist",
        "method": "two-stage",
        "values": "4.000e0",  # one upload and one download in each of two rounds
        "published": "4.526e9",
        "bytes": "16 B",
        "of fedavg's bytes": "2 %",  # fedavg: 2 x 2 x 50 values of 4 bytes
        "with initial weights": "2 %",  # one value of 4 bytes more against 50
    }
    assert rows["independent"]["published"] is None and sent["independent"]["bytes"] == "0"
    level = {row["method"]: row for row in levelled.table}
    assert {row["level"] for row in level.values()} == {"70.00"}
    assert (level["two-stage"]["round"], level["fedavg"]["round"]) == (2, 1)
    assert level["two-stage"]["of fedavg's bytes"] == "4 %", "16 bytes in two rounds against 400 in one"
    assert level["independent"] == {"data": "mnist", "method": "independent", "level": "70.00", "round": None}
    assert "10 training and 7 test samples" in ended.text


def test_table2_accepts_a_subset_of_cells(tmp_path: Path) -> None:
    first, *_, control = handmade_outcomes(tmp_path)
    (row,) = TABLE2.sections([first])[1].table
    assert row["of fedavg's bytes"] is None
    assert not TABLE2.sections([control])[2].table, "nothing compared, no level"
    assert FIGURES2_3.sections([control])[1].figure is None, "nothing was sent, nothing to draw"


def test_select_rounds_takes_the_next_tested_round() -> None:
    assert select_rounds([4, 8, 12, 20], (1, 5, 10)) == [4, 8, 12, 20]
    assert select_rounds([1, 2, 3], (1, 5)) == [1, 3] and select_rounds([], (1,)) == []


def test_published_transmitted_values_by_hand() -> None:
    """FedAvg on MNIST: 2 ways x 689 rounds x 10 devices x 1,663,370 parameters."""
    assert format_power(2 * 689 * 10 * 1_663_370) == format_power(PUBLISHED_TABLE["mnist"]["fedavg"][2]) == "2.292e10"
    assert format_power(0) == "0"


# --- running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shared by the tests: runs of one test are reused by the next."""
    return tmp_path_factory.mktemp("reproductions")


@pytest.mark.parametrize("name", list(ALL))
def test_reproduction_runs_once_and_is_drawn(name: str, folder: Path) -> None:
    page = run_and_draw(ALL[name], folder / name)
    assert page.count("data:image/png;base64,") == (name == "leakage")


def test_curves_reuse_the_runs_of_the_table(tmp_path: Path) -> None:
    some = [("row", "fedavg"), ("row", "two-stage")]
    tables = tables_of(ALL["table2"], tmp_path, some)
    (row, other), (sent, _) = tables["table2"], tables["transmitted"]
    report = run_reproduction(ALL["curves"], Scale(), tmp_path, saved_only=True)
    assert {labels["row"] for labels in report.missing} == set(ROWS) - {"fedavg", "two-stage"}
    tables = {section.name: section.table for section in report.sections}
    ends = {line["method"]: float(line["round 4"]) for line in tables["accuracy-digits"]}
    assert ends == pytest.approx({each["method"]: float(each["accuracy"]) for each in (row, other)}, abs=0.06)
    assert tables["bytes-digits"][0]["round 4"] == sent["bytes"]
    with pytest.raises(UnknownName, match="unknown row 'fedavgg'"):
        tables_of(ALL["curves"], tmp_path, [("row", "fedavgg")])


def test_progress_of_a_joining_device_starts_when_it_joins(folder: Path) -> None:
    found = {
        cell.labels["row"]: outcome
        for cell, outcome in run_cells(ALL["universality"].cells(Scale()), folder / "universality")
    }
    assert all(found.values())
    arrivals = {row: newcomer_progress(outcome) for row, outcome in found.items() if outcome}
    assert {tuple(arrival.accuracy) for arrival in arrivals.values()} == {(1, 2)}
    assert (
        arrivals["independent"].first_download
        == 0
        < arrivals["two-stage"].first_download
        < arrivals["fedavg"].first_download / 8
    )
    outcomes = [outcome for outcome in found.values() if outcome]
    newcomer, others = FIGURE4.sections(outcomes)
    columns = {"method", "round 1", "round 2", "first download"}
    assert [set(row) for row in newcomer.table] == [columns] * len(NEWCOMER_ROWS)
    shown = {row["method"]: row["round 2"] for row in newcomer.table}
    assert "→" not in shown["independent"], "nothing is merged"
    for name in ("two-stage", "two-stage-1bit", "fedavg", "fedprox"):
        before, after = map(float, shown[name].split(" → "))
        assert before == pytest.approx(arrivals[name].before[2], abs=0.06)
        assert after == pytest.approx(arrivals[name].accuracy[2], abs=0.06)
    assert any(arrivals[row].before != arrivals[row].accuracy for row in ("two-stage-1bit", "fedavg"))
    for row, outcome in zip(others.table, outcomes, strict=True):
        course = progress_of(outcome)
        assert row["before"] == f"{np.mean(course.accuracy[2]):.1f}", "tested last before it came in round 3"
        assert row["after the last round"] == f"{np.mean(course.accuracy[4]):.1f}"


def test_reconstructions_are_saved_and_measured_again_if_damaged(tmp_path: Path) -> None:
    only = Scale(only=[("alpha_1", "0.9")])
    shown = run_reproduction(ALL["leakage"], only, tmp_path).sections
    (cell,) = (tmp_path / "cells").iterdir()
    outcome = Outcome({"row": "two-stage", "alpha_1": "0.9"}, {}, cell)
    found = attacks_of(outcome)
    assert list(found.devices) == [0, 1, 2] and int(found.auxiliary) == 40
    assert found.truth.shape == found.images.shape == (6, 1, 8, 8), "two of each device"
    assert found.images.min() >= 0 and found.images.max() <= 1 and not np.array_equal(found.truth, found.images)
    assert (found.psnr > found.baseline_psnr).all(), "outputs of a hidden layer tell more than nothing"
    (cell / FILE).write_bytes(b"no archive")
    again = attacks_of(outcome)
    assert np.array_equal(again.images, found.images), "measured anew, the same"
    fewer = {each.name: getattr(found, each.name) for each in fields(found)} | {"devices": found.devices[:2]}
    np.savez(cell / FILE, **fewer)
    assert list(attacks_of(outcome).devices) == [0, 1, 2], "of as many devices as are asked for now"
    (checkpoint,) = cell.glob("checkpoint-*.safetensors")
    checkpoint.unlink()
    (cell / "checkpoint.json").unlink()
    assert [s.table for s in run_reproduction(ALL["leakage"], only, tmp_path).sections] == [s.table for s in shown], (
        "as kept"
    )
    (cell / FILE).unlink()
    with pytest.raises(CheckpointError, match=f"{cell.name}: .*has no checkpoint"):
        attacks_of(outcome)


def test_lost_ssim_compares_the_same_devices(folder: Path) -> None:
    control, other, _ = tables_of(ALL["leakage"], folder / "leakage", [("row", "two-stage")])["reconstructed"]
    assert (control["method"], other["method"]) == ("two-stage, alpha_1 = 0", "two-stage, alpha_1 = 0.9")
    without, with_it = (
        attacks_of(
            Outcome({"row": "two-stage"}, {}, next((folder / "leakage" / "cells").glob(f"two-stage-{alpha}-*")))
        ).ssim
        for alpha in ("0", "0.9")
    )
    lost = [a - b for a, b in zip(without, with_it, strict=True)]
    assert other["SSIM lost"] == f"{fmean(lost):.3f} ± {stdev(lost) / 3**0.5:.3f}" and control["SSIM lost"] is None


def test_unprotected_layer_of_fedavg_is_reconstructed_too(folder: Path) -> None:
    tables = tables_of(ALL["leakage"], folder / "leakage", [("row", "fedavg")])
    (by_round,), (row, guess) = tables["dependence"], tables["reconstructed"]
    assert by_round["method"] == row["method"] == "fedavg"
    assert float(row["distance correlation"].split()[0]) > 0.9, "a convolution tells nearly all"
    assert float(row["SSIM"].split()[0]) > float(guess["SSIM"].split()[0]) and row["SSIM lost"] is None


# --- without run folders


@pytest.mark.parametrize("name", list(ALL))
def test_cells_alone_show_the_same_sections(name: str, folder: Path, tmp_path: Path) -> None:
    """`cells.jsonl` is all that comes back from another machine: tables, figures and pictures need nothing else."""
    run = ALL[name]
    shown = run_reproduction(run, Scale(), folder / name).sections
    (tmp_path / FINISHED).write_bytes((folder / name / FINISHED).read_bytes())
    found = run_reproduction(run, Scale(), tmp_path, saved_only=True)
    assert not found.missing and not (tmp_path / "cells").exists()
    assert [(s.heading, s.text, s.table) for s in found.sections] == [(s.heading, s.text, s.table) for s in shown]
    assert [[p.content for p in s.pictures] for s in found.sections] == [[p.content for p in s.pictures] for s in shown]
    assert all(section.figure() is not None for section in found.sections if section.figure)
    longest = max(map(len, (tmp_path / FINISHED).read_text().splitlines()))
    assert longest < 20_000, "a line stays small"


def test_table1_counts_values_by_formula_and_as_measured(folder: Path) -> None:
    tables = tables_of(ALL["table1"], folder / "table1")
    rows = {row["method"]: row for row in tables["table1"]}
    assert list(rows) == ["two-stage", "two-stage-batch", "fedavg", "fedprox"]
    server, whole = 64 * 32 + 32 + 32 * 10 + 10, 6570
    for row, size in (("two-stage", server), ("two-stage-batch", server), ("fedavg", whole), ("fedprox", whole)):
        assert (
            rows[row]["G or N"] == f"{size:,}" and rows[row]["per device"] == rows[row]["measured"] == f"{2 * size:,}"
        )
    assert rows["two-stage"]["bytes up"] == "374 B" and rows["fedavg"]["bytes up"] == "26.7 kB"


def test_table1_implies_the_sizes_of_the_published_models(tmp_path: Path) -> None:
    sent = {"values_up": 338_154, "values_down": 338_154, "bytes_up": 42_400, "bytes_down": 42_400}
    settings = SMALL.settings(Scale(), "two-stage") | {"data": "mnist", "model": "device-cnn-large"}
    outcome = Outcome({"data": "mnist", "row": "two-stage"}, {}, tmp_path, {"messages": sent}, settings)
    (row,) = TABLE1.sections([outcome])[0].table
    assert (row["per device"], row["total by formula"], row["published"]) == ("676,308", "4.433e9", "4.526e9")
    assert row["implied size"] == "345,233"
    whole = {"values_up": 457_450, "values_down": 457_450, "bytes_up": 1_830_000, "bytes_down": 1_830_000}
    other = replace(outcome, labels={"data": "cifar10", "row": "fedavg"}, records={"messages": whole})
    (row,) = TABLE1.sections([other])[0].table
    assert (row["total by formula"], row["published"], row["implied size"]) == ("2.553e9", "2.559e9", "458,602")
