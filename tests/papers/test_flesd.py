"""FLESD's tables and figures: the published settings, and each reproduction on a small task."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.errors import UnknownName
from consilience.papers import REPRODUCTIONS, Scale
from consilience.papers.cells import Reproduction
from consilience.papers.flesd.equation11 import message_bytes_by_role, task_with_model
from consilience.papers.flesd.experiment import (
    PUBLISHED,
    SHORT,
    CommunicationSchemes,
    FlesdSize,
    LongTraining,
    SupervisedTraining,
)
from consilience.papers.flesd.figure2 import FIGURE2, PUBLISHED_DROPS
from consilience.papers.flesd.figure4 import FIGURE4
from consilience.papers.flesd.figure5 import FIGURE5
from consilience.papers.flesd.table1 import PUBLISHED_TABLE, TABLE1
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
    fedavg_rounds=2,
    fedprox_mus=(0.01, 1),
    supervised=SupervisedTraining(2, 16),
    communication=CommunicationSchemes((1, 2), 2, 1, (1, 2)),
    convergence=LongTraining(4, 2, 4),
)
ALL: dict[str, Reproduction] = {
    experiment.name.removeprefix("flesd-"): experiment.at_size(TINY, TINY)
    for experiment in (TABLE1, FIGURE2, FIGURE4, FIGURE5)
}
NAMES = [f"flesd-{each}" for each in ALL]


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
        assert (config.model.name, config.training.optimizer, config.training.lr, config.federation.seeds) == (
            "encoder18",
            "adam",
            1e-3,
            1,
        )
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
    assert {c.training.rounds * c.training.epochs for c in shared} == {200} and len(shared) == 12
    lasting = [c.config for c in cells if c.labels["scheme"] == "local epochs fixed"]
    assert [(c.method.name, c.training.rounds, c.training.epochs, c.evaluation.every) for c in lasting] == [
        ("flesd", 20, 100, 1),
        ("fedavg", 20, 100, 1),
    ]
    local = [c.config for c in cells if c.labels["scheme"] == "two rounds"]
    assert {c.training.rounds for c in local} == {2} and {c.training.epochs for c in local} == {10, 25, 50, 100}
    longest = [c.config for c in REPRODUCTIONS["flesd-convergence"].cells(Scale())]
    assert [(c.method.name, c.training.rounds, c.training.rounds * c.training.epochs) for c in longest] == [
        ("flesd", 5, 2000),
        ("fedavg", 20, 2000),
    ]


def test_short_size_has_the_same_rows_with_fewer_epochs() -> None:
    assert (SHORT.train, SHORT.model, SHORT.alphas) == (PUBLISHED.train, PUBLISHED.model, PUBLISHED.alphas)
    for name in NAMES:
        whole, short = (REPRODUCTIONS[f"{name}{size}"].cells(Scale()) for size in ("", "-short"))
        longest, shorter = (
            max(c.config.training.rounds * c.config.training.epochs for c in cells) for cells in (whole, short)
        )
        assert shorter < longest / 3 and {c.labels["row"] for c in short} == {c.labels["row"] for c in whole}


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
    assert float(rows["independent, worst"]["alpha 100"]) <= float(rows["independent, mean"]["alpha 100"])
    assert rows["fedprox, best mu"]["alpha 100"] == max((row["alpha 100"] for row in tables["mu"]), key=float)
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
    assert sum(row["images"] for row in each) == TINY.train and len(each) == 6
    mean = sum(float(row["with labels"]) for row in each) / 6
    assert float(tables["alone"][0]["alpha 100"]) == pytest.approx(mean, abs=0.11)


def test_convergence_tables_list_losses_by_epoch(folder: Path) -> None:
    tables = tables_of(ALL["convergence"], folder / "convergence")
    assert [row["after"] for row in tables["local"]] == ["epoch 1", "epoch 2", "epoch 3", "epoch 4"]
    both = [row["after"] for row in tables["local"] if "flesd, local training" in row]
    assert both == ["epoch 2", "epoch 4"] == [row["after"] for row in tables["distilled"]]


def test_communication_tables_list_accuracy_by_round(folder: Path) -> None:
    tables = tables_of(ALL["communication"], folder / "communication", [("scheme", "local epochs fixed")])
    assert [row["rounds"] for row in tables["local-epochs-fixed"]] == ["T = 1", "T = 2"]
    assert all({"flesd", "fedavg"} < set(row) for row in tables["local-epochs-fixed"])
    assert len(tables["equation-11"]) == 8 and tables["equation-11"][2]["float32"] == "2.25"
