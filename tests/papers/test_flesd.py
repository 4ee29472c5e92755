"""FLESD's tables and figures: the published settings, and each reproduction on a small task."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.data import load
from consilience.data.readers.cifar10 import read_cifar10
from consilience.errors import ConfigurationError, UnknownName
from consilience.papers import REPRODUCTIONS, Scale
from consilience.papers.cells import Outcome, Reproduction
from consilience.papers.flesd.architectures import ARCHITECTURES
from consilience.papers.flesd.equation11 import equation11_sections, message_bytes_by_role, task_with_model
from consilience.papers.flesd.experiment import (
    PUBLISHED,
    QUICK,
    SEEDS,
    SHORT,
    TRAIN,
    CommunicationSchemes,
    EncoderPair,
    FlesdSize,
    LongTraining,
    SupervisedTraining,
    TableRows,
)
from consilience.papers.flesd.figure2 import FIGURE2, PUBLISHED_DROPS
from consilience.papers.flesd.figure4 import FIGURE4
from consilience.papers.flesd.figure5 import FIGURE5
from consilience.papers.flesd.seeds import seeds_by_rule, smallest_learner
from consilience.papers.flesd.table1 import PUBLISHED_TABLE, TABLE1
from consilience.papers.run import run_reproduction
from tests.papers_tools import known_at_both_sizes, run_and_draw, tables_of

TINY = FlesdSize(
    train=120,
    test=40,
    total_epochs=2,
    distill_epochs=1,
    batch_size=32,
    data="digits",
    model="mlp",
    alphas=(100, 1),
    queue=16,
    seeds=(3, 9),
    table=TableRows(seeds=2, fedavg_rounds=2, fedprox_mus=(0.01, 1)),
    encoders=EncoderPair("mlp", "lenet5", 84),
    supervised=SupervisedTraining(2, 16),
    communication=CommunicationSchemes((1, 2), 2, 1, (1, 2)),
    convergence=LongTraining(4, 2, 4),
)
ALL: dict[str, Reproduction] = {
    experiment.name.removeprefix("flesd-"): experiment.at_size(TINY, TINY)
    for experiment in (TABLE1, FIGURE2, FIGURE4, FIGURE5, ARCHITECTURES)
}
NAMES = [f"flesd-{each}" for each in ALL]
REAL = Path(os.environ.get("CONSILIENCE_DATA") or Path(__file__).parents[3] / "shared" / "data")


# --- settings


def test_reproductions_are_registered_at_both_sizes() -> None:
    assert known_at_both_sizes("flesd", NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_cells_have_the_published_settings(name: str) -> None:
    """Section 5 of the paper: six learners, ResNet18, Adam at 1e-3, temperature 0.4, batches of 1024."""
    for cell in REPRODUCTIONS[name].cells(Scale(device="cuda")):
        config = cell.config
        assert (config.data.source, config.data.train, config.data.test, config.federation.learners) == (
            "cifar10",
            20_000,
            None,
            6,
        )
        assert config.model.name == "encoder18" or cell.labels["teachers"] == "encoder50"
        assert (config.training.optimizer, config.training.lr) == ("adam", 1e-3)
        assert (config.federation.seed, config.federation.seeds) == (SEEDS[0], 1)
        if cell.labels["row"] != "supervised":
            assert (config.training.batch_size, config.training.weight_decay) == (1024, 1e-6)
            assert config.method.settings["objective"] == "simclr(0.4)"
        if config.method.name.startswith("flesd"):
            assert (config.method.settings["distill_epochs"], config.method.settings["queue"]) == (200, 2048)


def test_table1_rows_have_the_published_rounds_and_epochs() -> None:
    cells = REPRODUCTIONS["flesd-table1"].cells(Scale())
    own = {c.labels["row"]: c.config for c in cells if c.labels["alpha"] in ("1", "any")}
    assert {row: (c.training.rounds, c.training.rounds * c.training.epochs) for row, c in own.items()} == {
        "centralized": (1, 200),
        "independent": (1, 200),
        "fedavg": (10, 200),
        **{f"fedprox, mu {mu}": (10, 200) for mu in ("0.001", "0.01", "0.1", "1")},
        "flesd": (2, 200),
        "flesd-cc": (1, 200),
        "flesd, every learner distills": (2, 200),
    }
    assert len(cells) == 3 * 9 + 1, "centralized once"
    assert {c.config.federation.partition for c in cells} == {"dirichlet(100)", "dirichlet(1)", "dirichlet(0.01)"}


def test_robustness_cells_train_with_and_without_labels() -> None:
    cells = REPRODUCTIONS["flesd-robustness"].cells(Scale())
    taught = {
        (c.labels["row"], c.config.training.epochs, c.config.training.batch_size, c.config.evaluation.probe)
        for c in cells
    }
    assert taught == {("supervised", 100, 128, "linear"), ("simclr", 200, 1024, "both")} and len(cells) == 6


def test_communication_cells_have_the_published_schemes() -> None:
    cells = REPRODUCTIONS["flesd-communication"].cells(Scale())
    shared = [c.config for c in cells if c.labels["scheme"] == "total epochs fixed"]
    assert sorted({c.training.rounds for c in shared}) == [1, 2, 4, 10, 20, 40]
    assert {c.training.rounds * c.training.epochs for c in shared} == {200} and len(shared) == 3 * 12
    searched = {(c.method.name, c.federation.partition) for c in shared}
    assert searched == {(m, f"dirichlet({a})") for m in ("flesd", "fedavg") for a in ("100", "1", "0.01")}
    lasting = [c.config for c in cells if c.labels["scheme"] == "local epochs fixed"]
    assert [(c.method.name, c.training.rounds, c.training.epochs, c.evaluation.every) for c in lasting] == [
        ("flesd", 20, 100, 1),
        ("fedavg", 20, 100, 1),
    ]
    local = [c.config for c in cells if c.labels["scheme"] == "two rounds"]
    assert {c.training.rounds for c in local} == {2} and {c.training.epochs for c in local} == {10, 25, 50, 100}
    assert len(local) == 24 and {c.method.name for c in local} == {"flesd", "fedavg"}, "both curves of the right part"
    longest = [c.config for c in REPRODUCTIONS["flesd-convergence"].cells(Scale())]
    assert [(c.method.name, c.training.rounds, c.training.rounds * c.training.epochs) for c in longest] == [
        ("flesd", 5, 2000),
        ("fedavg", 20, 2000),
    ]


def test_short_size_has_the_same_rows_with_fewer_epochs() -> None:
    assert (SHORT.model, SHORT.alphas) == (PUBLISHED.model, PUBLISHED.alphas) and SHORT.train == PUBLISHED.train // 2
    for name in NAMES:
        whole, short = (REPRODUCTIONS[f"{name}{size}"].cells(Scale()) for size in ("", "-short"))
        longest, shorter = (
            max(c.config.training.rounds * c.config.training.epochs for c in cells) for cells in (whole, short)
        )
        assert shorter < longest / 3 and {c.labels["row"] for c in short} <= {c.labels["row"] for c in whole}


def test_short_table_has_three_seeds_and_one_mu() -> None:
    cells = REPRODUCTIONS["flesd-table1-short"].cells(Scale())
    rows = {"independent", "fedavg", "fedprox, mu 0.01", "flesd", "flesd-cc"}
    split = [c for c in cells if c.labels["row"] != "centralized"]
    assert {c.labels["row"] for c in split} == rows and len(split) == 3 * 5 * 3
    assert {c.config.federation.seed for c in split} == {1, 3, 7} and {c.config.federation.seeds for c in split} == {1}
    one = [c for c in REPRODUCTIONS["flesd-table1"].cells(Scale()) if c.labels["row"] == "flesd"]
    assert {c.labels["seed"] for c in one} == {5}, "one seed in the published size"


# --- seeds


def test_seeds_are_those_of_the_rule() -> None:
    """The rule on real labels: the first seeds in which no learner has less than a twentieth of the images."""
    if not list((REAL / "cifar10").glob("*")):
        pytest.skip(f"cifar10 is not in {REAL}; set CONSILIENCE_DATA to the folder that has it")
    targets = read_cifar10(REAL, False).targets
    assert tuple(seeds_by_rule(targets[:TRAIN], 6, PUBLISHED.alphas, 5)) == SEEDS
    assert tuple(seeds_by_rule(targets[: SHORT.train], 6, SHORT.alphas, 5)) == SHORT.seeds
    assert tuple(seeds_by_rule(targets[: QUICK.train], 6, QUICK.alphas, 3)) == QUICK.seeds
    assert [smallest_learner(targets[:TRAIN], 6, 0.01, seed) for seed in (0, 4, 5)] == [119, 2, 1981]


def test_rule_skips_seeds_with_a_small_learner() -> None:
    targets = np.repeat(np.arange(4), 50)  # 200 images of 4 classes
    chosen = seeds_by_rule(targets, 4, (0.05,), 3)
    sizes = [smallest_learner(targets, 4, 0.05, seed) for seed in range(chosen[-1] + 1)]
    assert [seed for seed, size in enumerate(sizes) if size >= 10] == chosen and min(sizes) < 10


def test_the_sizes_of_the_rule_are_those_of_a_run(folder: Path) -> None:
    seeds = tables_of(ALL["table1"], folder / "table1", [("alpha", "1"), ("row", "independent")])["seeds"]
    targets = load("digits", train=TINY.train, test=TINY.test).targets
    assert {line["seed"]: line["smallest learner"] for line in seeds} == {
        seed: smallest_learner(targets, 6, 1, seed) for seed in TINY.seeds
    }


def test_more_seeds_than_the_rule_has_found_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"9 seeds are wanted, .*use at most 5"):
        REPRODUCTIONS["flesd-table1"].cells(Scale(seeds=9))


# --- bytes


def test_message_bytes_match_equation_11() -> None:
    """Published: 10,000 images x 512 values are 5.12 million, and ResNet18 has 11 million."""
    task = task_with_model("encoder18")
    roles = message_bytes_by_role("flesd", task, 10_000, form="pool")
    values, up = 10_000 * 512, roles["witness"]["up"]
    assert 4 * values < up < 4 * values + 200 and roles["witness"]["down"] == 0
    weights = message_bytes_by_role("fedavg", task)["learner"]["up"]
    assert 2.2 < weights / up < 2.3  # with the projection head
    assert roles["learner"] == {"up": 0, "down": roles["distiller"]["up"]}, "everybody hears what was distilled"
    assert roles["distiller"]["down"] > 5 * 4 * values, "who distills hears the pool"
    small = message_bytes_by_role("flesd", task, 10_000, form="pool", encoding="int8")["witness"]["up"]
    assert 3.9 < up / small < 4
    pairs = 10_000 * 9_999 // 2
    assert 4 * pairs < message_bytes_by_role("flesd", task, 10_000, form="mean")["witness"]["up"] < 4 * pairs + 200


# --- running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shared by the tests: runs of one test are reused by the next."""
    return tmp_path_factory.mktemp("reproductions")


@pytest.mark.parametrize("name", list(ALL))
def test_reproduction_runs_once_and_is_drawn(name: str, folder: Path) -> None:
    run_and_draw(ALL[name], folder / name)


def test_table1_has_worst_best_and_published_values(folder: Path) -> None:
    tables = tables_of(ALL["table1"], folder / "table1", [("alpha", "100")])
    rows = {row["method"]: row for row in tables["table-linear"]}
    assert {row: line["alpha 100 published"] for row, line in rows.items() if line["alpha 100 published"]} == {
        row: known[100] for row, known in PUBLISHED_TABLE.items() if row != "centralized"
    }
    worst, mean = (float(rows[f"independent, {which}"]["alpha 100"].split()[0]) for which in ("worst", "mean"))
    assert worst <= mean and rows["flesd"]["seeds"] == 2 and "±" in rows["flesd"]["alpha 100"]
    reached = {row["alpha 100"] for row in tables["mu"]}
    assert rows["fedprox"]["alpha 100"] == max(reached, key=lambda text: float(text.split()[0]))
    assert rows["independent, mean"]["bytes"] == 0 < rows["flesd-cc"]["bytes"] < rows["flesd"]["bytes"]
    assert "alpha 100 published" not in tables["table-knn"][0] and len(tables["table-knn"]) == len(rows)


def test_table1_can_be_limited_to_one_row(folder: Path) -> None:
    (row,) = tables_of(ALL["table1"], folder / "table1", [("row", "centralized")])["table-linear"]
    assert row["method"] == "centralized" and row["any published"] == 86.3
    with pytest.raises(UnknownName, match="unknown row 'flesdd'"):
        tables_of(ALL["table1"], folder / "table1", [("row", "flesdd")])


def test_robustness_tables_match_the_learners(folder: Path) -> None:
    tables = tables_of(ALL["robustness"], folder / "robustness")
    assert [row["training"] for row in tables["alone"]] == list(PUBLISHED_DROPS)
    assert tables["alone"][0]["published change"] == "-54.5"
    each = [row for row in tables["learners"] if row["data"] == "alpha 100"]
    assert sum(row["images"] for row in each) == TINY.train and len(each) == 6 and each[0]["seed"] == 3
    mean = sum(float(row["with labels"]) for row in each) / 6
    assert float(tables["alone"][0]["alpha 100"]) == pytest.approx(mean, abs=0.11)


def test_convergence_tables_list_losses_by_epoch(folder: Path) -> None:
    tables = tables_of(ALL["convergence"], folder / "convergence")
    assert [row["after"] for row in tables["local"]] == ["epoch 1", "epoch 2", "epoch 3", "epoch 4"]
    both = [row["after"] for row in tables["local"] if "flesd, local training" in row]
    assert both == ["epoch 2", "epoch 4"] == [row["after"] for row in tables["distilled"]]


def test_communication_tables_list_accuracy_by_round(folder: Path) -> None:
    tables = tables_of(ALL["communication"], folder / "communication")
    middle = tables["local-epochs-fixed"]
    assert [row["rounds"] for row in middle] == ["T = 1", "T = 2"]
    assert all({"flesd", "fedavg"} < set(row) for row in middle)
    assert 2 * middle[0]["fedavg, bytes so far"] == middle[1]["fedavg, bytes so far"]
    assert {"flesd, alpha 100", "fedavg, alpha 100", "flesd, alpha 1", "fedavg, alpha 1"} < set(tables["two-rounds"][0])
    assert len(tables["equation-11"]) == 8 and tables["equation-11"][2]["float32"] == "2.25"


def test_the_search_finds_the_best_rounds_of_each_alpha(folder: Path) -> None:
    tables = tables_of(ALL["communication"], folder / "communication")
    found = {(row["data"], row["method"]): row for row in tables["searched-rounds"]}
    assert len(found) == 4 and {row["searched"] for row in found.values()} == {"1, 2"}
    for alpha in ("100", "1"):
        for method in ("flesd", "fedavg"):
            lines = {row["rounds"]: row for row in tables[f"total-epochs-fixed-{alpha}"]}
            best = max(lines, key=lambda rounds: float(lines[rounds][method]))
            line = found[f"alpha {alpha}", method]
            assert (float(line["accuracy"]), line["bytes"]) == (
                float(lines[best][method]),
                lines[line["best"]][f"{method}, bytes"],
            )


def test_public_set_each_round_costs_its_images_once_more_per_round() -> None:
    rows = equation11_sections()[1].table
    ten = next(row for row in rows if (row["model"], row["public images"]) == ("encoder18", 10_000))
    task = task_with_model("encoder18")
    weights = message_bytes_by_role("fedavg", task)["learner"]["up"]
    up = message_bytes_by_role("flesd", task, 10_000, form="pool")["witness"]["up"]
    assert ten["float32, public set each round"] == f"{weights / (up + 10_000 * 3072):.2f}"
    assert ten["float32, public set once"] == f"{weights / (up + 10_000 * 3072 / 2):.2f}"


def outcome(labels: dict[str, Any], mean: float, worst: float, rounds: int = 1) -> Outcome:
    """A finished cell with the records that sections read."""
    records = {
        "probes": {"linear": {"mean": mean, "worst": worst}},
        "accuracy_linear": [[rounds, [mean] * 6]],
        "bytes": {"after_round": [60, *(60 + 100 * r for r in range(1, rounds + 1))], "public": 60},
        "class_counts": [[5, 0], [3, 4]] * 3,
    }
    settings = PUBLISHED.settings(Scale(), 1, rounds, labels["seed"], name="independent")
    return Outcome(labels, {"rounds": rounds}, Path("missing"), records, settings)


def test_differences_are_paired_by_seed() -> None:
    """Differences to fedavg -1, -2, -3: mean -2, half-width 4.303 / sqrt(3) = 2.48."""
    cells = []
    for seed, (flesd, fedavg, worst) in {5: (60.0, 61.0, 55.0), 6: (50.0, 52.0, 51.0), 7: (57.0, 60.0, 50.0)}.items():
        cells.append(outcome({"alpha": "1", "row": "independent", "seed": seed}, worst + 2, worst))
        cells.append(outcome({"alpha": "1", "row": "fedavg", "seed": seed}, fedavg, fedavg))
        cells.append(outcome({"alpha": "1", "row": "flesd", "seed": seed}, flesd, flesd, rounds=2))
    tables = {section.name: section.table for section in TABLE1.sections(cells)}
    (line,) = tables["differences"]
    assert line["above the worst learner"] == "2 of 3" and line["to fedavg"] == "-2.0 (-4.5 to +0.5)"
    assert line["to the worst learner"] == "+3.7 (-6.7 to +14.0)"
    reached = {row["method"]: row for row in tables["table-linear"]}
    assert reached["independent, worst"]["alpha 1"] == "52.0 ± 2.6" and reached["flesd"]["bytes"] == 260
    assert tables["seeds"][0] == {
        "seed": 5,
        "data": "alpha 1",
        "smallest learner": 5,
        "public set": 5,
        "its classes": 1,
    }


def test_architectures_compare_every_pair_of_encoders(folder: Path) -> None:
    pairs = REPRODUCTIONS["flesd-architectures-short"].cells(Scale())
    assert len(pairs) == 18, "four pairs and two encoders alone, with three seeds"
    mixed = next(c.config for c in pairs if (c.labels["teachers"], c.labels["student"]) == ("resnet9", "encoder18"))
    assert mixed.learner_models == ["encoder18", *["resnet9"] * 5] and mixed.method.settings["distill"] == "learner"
    tables = tables_of(ALL["architectures"], folder / "architectures")
    assert [(row["teachers"], row["student"]) for row in tables["architectures"]] == [
        ("mlp", "mlp"),
        ("mlp", "lenet5"),
        ("lenet5", "mlp"),
        ("lenet5", "lenet5"),
    ]
    assert len(tables["changes"]) == 4 and [row["encoder"] for row in tables["alone"]] == ["mlp", "lenet5"]
    by_pair = {row["student"]: float(row["student %"].split()[0]) for row in tables["architectures"][:2]}
    change = float(tables["changes"][0]["student"].split()[0])
    assert change == pytest.approx(by_pair["lenet5"] - by_pair["mlp"], abs=0.11)


@pytest.mark.parametrize("name", list(ALL))
def test_tables_are_the_same_from_the_file_of_finished_cells(name: str, folder: Path, tmp_path: Path) -> None:
    shown = run_reproduction(ALL[name], Scale(), folder / name).sections
    shutil.copy(folder / name / "cells.jsonl", tmp_path / "cells.jsonl")
    copied = run_reproduction(ALL[name], Scale(), tmp_path, saved_only=True)
    assert not copied.missing and not (tmp_path / "cells").exists()
    assert [(s.heading, s.text, s.table) for s in copied.sections] == [(s.heading, s.text, s.table) for s in shown]
