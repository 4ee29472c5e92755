"""Tables: CSV files with a label column, owners and dropped columns; what cannot be learned from is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.data import Dataset, Scaling, load
from consilience.errors import ConfigurationError, DataError

ROWS = 40


def rows(**changes: Any) -> dict[str, list[Any]]:
    """A table of two inputs on very different scales, a class and an owner, 20 rows of each class."""
    columns = {
        "size": [float(i % 7) for i in range(ROWS)],
        "weight": [1e6 + 1e4 * (i % 5) + 5e4 * (i % 2) for i in range(ROWS)],
        "kind": ["oak" if i % 2 else "elm" for i in range(ROWS)],
        "garden": [("north", "east", "south")[i % 3] for i in range(ROWS)],
    }
    return {name: values for name, values in {**columns, **changes}.items() if values is not None}


def write(path: Path, separator: str = ",", **changes: Any) -> Path:
    columns = rows(**changes)
    lines = [columns, *zip(*columns.values(), strict=True)]
    path.write_text("".join(separator.join(map(str, line)) + "\n" for line in lines))
    return path


def with_cell(name: str, row: int, value: object) -> dict[str, list[Any]]:
    values: list[Any] = list(rows()[name])
    values[row - 1] = value
    return {name: values}


def read(path: Path, **options: Any) -> Dataset:
    return load(path, **{"label": "kind", "owners": "garden", **options})


# --- reading


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_is_read_with_label_and_owners(tmp_path: Path, separator: str) -> None:
    data = read(write(tmp_path / "trees.csv", separator))
    assert (data.name, data.shape, data.columns) == ("trees", (2,), ("size", "weight"))
    assert data.labels == ("elm", "oak") and data.owner_names == ("east", "north", "south")
    assert len(data.targets) + len(data.test_targets) == ROWS and data.owners is not None
    assert np.bincount(data.test_targets).tolist() == [4, 4]
    raw = data.scaling.undo(data.inputs.astype(np.float64))
    heavy = np.rint((raw[:, 1] - 1e6) / 1e4)  # 5 more for oaks
    assert ((heavy >= 5) == (data.targets == 1)).all()


def test_every_column_is_scaled_by_the_training_rows(tmp_path: Path) -> None:
    data = read(write(tmp_path / "trees.csv"))
    assert data.scaling.kind == "columns"
    assert data.inputs.mean(0) == pytest.approx([0, 0], abs=1e-6)
    assert data.inputs.std(0) == pytest.approx([1, 1], abs=1e-6)
    raw = np.array([[3.0, 1.05e6]])
    by_hand = (raw - data.scaling.mean) / data.scaling.std
    assert data.scaling.apply(raw) == pytest.approx(by_hand, rel=1e-6)
    assert Scaling.from_record(data.scaling.record()) == data.scaling


def test_columns_may_be_dropped_and_numbers_may_be_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "trees.csv", note=["tall"] * ROWS, kind=[3 + i % 2 * 7 for i in range(ROWS)])
    data = read(path, drop="note, size")
    assert data.columns == ("weight",) and data.labels == ("3", "10")  # by number, not by letter
    plain = read(write(tmp_path / "plain.csv", kind=[i % 2 for i in range(ROWS)]))
    assert plain.labels == () and plain.classes == 2


def test_a_second_file_may_have_the_test_samples(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv")
    tests = tmp_path / "tests.csv"
    tests.write_text("kind,weight,size\noak,1060000,2\nelm,1000000,3\n")  # columns in another order, without owners
    data = read(train, test_data=tests)
    assert len(data.targets) == ROWS and sorted(data.test_targets) == [0, 1]
    raw = data.scaling.undo(data.test_inputs.astype(np.float64))
    assert sorted(raw[:, 0].round(3)) == [2.0, 3.0]
    tests.write_text("kind,weight,size\nash,1,2\n")
    with pytest.raises(DataError, match=r"row 1 has the label 'ash', which no training.*has elm, oak"):
        read(train, test_data=tests)


def test_each_owner_adds_to_the_test_set(tmp_path: Path) -> None:
    owners = ["a"] * 20 + ["b"] * 18 + ["c"] * 2
    data = read(write(tmp_path / "trees.csv", garden=owners))
    assert data.owners is not None
    assert np.bincount(data.owners).tolist() == [16, 14, 2]  # 4 of 20, 4 of 18; who has two keeps both


def test_partition_owners_gives_each_owner_a_learner(tmp_path: Path) -> None:
    path = write(tmp_path / "trees.csv")
    result = simulate(
        data=str(path), label="kind", owners="garden", partition="owners", method="independent", rounds=30, workers=0
    )
    assert result.accuracy.shape == (1, 3) and result.accuracy.mean() > 70  # chance is 50
    assert result.config.federation.learners == 3


def test_learners_alone_learn_wine_by_scaled_columns(tmp_path: Path) -> None:
    from sklearn.datasets import load_wine

    wine = load_wine()
    header = ",".join([*wine.feature_names, "target"])
    np.savetxt(tmp_path / "wine.csv", np.c_[wine.data, wine.target], delimiter=",", header=header, comments="")
    path = str(tmp_path / "wine.csv")
    result = simulate(data=path, label="target", method="independent", learners=3, eval_every=50, workers=0)
    assert result.accuracy.mean() > 85  # 73 where all columns are scaled by one mean


# --- what cannot be learned from

BAD_TABLES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"label": None}, r"which column is predicted with --label COLUMN; it has the columns 'size', 'weight'"),
    ({}, {"label": "kinds"}, r"unknown column 'kinds' of .*trees.csv. Did you mean 'kind'\? Known: garden, kind"),
    ({f"x{i}": [i % 3] * ROWS for i in range(20)}, {"label": None}, "'size', .*, 12 more, .*'x18', 'x19'"),
    ({}, {"owners": "gardens"}, "unknown column 'gardens'"),
    ({}, {"drop": "price"}, "unknown column 'price'"),
    ({}, {"drop": "size,weight"}, "no column is left for inputs"),
    ({}, {"owners": "kind"}, "both label and owners"),
    (with_cell("size", 7, ""), {}, "column 'size', row 7 is empty; all other rows have a value;.*--drop 'size'"),
    (with_cell("size", 7, "NA"), {}, "column 'size', row 7 is empty"),
    ({"size": ["?"] * 3 + [1.0] * 37}, {}, "row 1 is empty; 3 rows have no usable value in this column"),
    (with_cell("size", 7, "inf"), {}, "column 'size', row 7 is 'inf'"),
    (
        {"size": ["tall"] * ROWS},
        {},
        "column 'size' holds text: row 1 is 'tall'.*correct it or encode the column.*--drop 'size'",
    ),
    ({"size": [4.0] * ROWS}, {}, "column 'size' has the same value in all 32 training samples.*--drop 'size'"),
    (with_cell("kind", 3, ""), {}, "column 'kind', row 3 is empty; .* fill in the labels, or remove the rows$"),
    ({"kind": [0, 1, "inf"] + [1] * 37}, {}, "label 'kind' of row 3 is inf, not a class"),
    (with_cell("garden", 3, ""), {}, "column 'garden', row 3 is empty, and every row needs an owner"),
    (
        {"kind": [i * 1.5 for i in range(ROWS)]},
        {"kind": "single-label"},
        "row 2 is 1.5, not a class; for amounts say --kind regression",
    ),
    (
        {"kind": list(range(ROWS))},
        {},
        "40 different values in 40 rows, too many for classes; for amounts say --kind regression, for classes --kind",
    ),
    ({"kind": ["oak"] * ROWS}, {}, "column 'kind' is 'oak' in every row: one class cannot be learned"),
    ({"": list(range(ROWS))}, {}, "column 5 has no name, as where row numbers were saved.*--drop 'column 5'"),
    ({}, {"image_size": 8}, "image_size is for folders of images, and .* is a table"),
]


@pytest.mark.parametrize(("changes", "options", "says"), BAD_TABLES)
def test_bad_tables_are_refused(tmp_path: Path, changes: Any, options: Any, says: str) -> None:
    path = write(tmp_path / "trees.csv", **changes)
    with pytest.raises((DataError, ConfigurationError), match=f"(?s){says}"):
        read(path, **options)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"size,kind\n", "has no rows"),
        (b"size,size\n1,2\n", "two columns are called 'size'"),
        (b"1,2\n3,4\n", "first line has only numbers, 1, 2"),
        (b"size,kind\n1,oak\n1,2,3\n", "line 3 has 3 cells, and the first line names 2 columns"),
        (b"size,kind\n1,\xff\n", "not UTF-8"),
    ],
)
def test_files_that_are_no_csv_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        load(path, label="kind")


def test_an_owner_with_one_sample_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trees.csv", garden=["a"] * 20 + ["b"] * 19 + ["c"])
    with pytest.raises(ConfigurationError, match="owner 'c' has 1 training sample, and a learner needs 2 or more"):
        simulate(data=str(path), label="kind", owners="garden", partition="owners", rounds=1)


def test_options_of_tables_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigurationError, match="label is for tables, and 'digits' is neither a file nor a folder"):
        load("digits", label="kind")


# --- labels in several columns


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"old": [0] * ROWS}, "label 'old' is 0 of every sample.*leave its column out"),
        ({"old": [1] * ROWS}, "label 'old' is 1 of every sample"),
        ({"old": [0, 1, 2, 1] * (ROWS // 4)}, "column 'old', row 3 is 2, and several columns are labels, 0 or 1"),
        ({"old": ["yes", "no"] * (ROWS // 2)}, "column 'old' holds text: row 1 is 'yes', and a number is needed"),
    ],
)
def test_label_columns_that_cannot_be_learned_are_refused_by_name(
    tmp_path: Path, labels: dict[str, Any], says: str
) -> None:
    path = write(tmp_path / "trees.csv", kind=[i % 2 for i in range(ROWS)], garden=None, **labels)
    with pytest.raises(DataError, match=f"(?s){says}"):
        load(path, label="kind,old")


def test_a_label_that_others_have_may_be_missing_if_the_kind_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "trees.csv", kind=[i % 2 for i in range(ROWS)], garden=None, old=[0] * ROWS)
    assert load(path, label="kind,old", kind="multi-label").targets.sum(axis=0).tolist() == [14, 0]


# --- targets of other tasks


@pytest.mark.parametrize(
    ("targets", "kind", "says"),
    [
        (np.tile([[1, 1, 0], [0, 1, 0]], (10, 1)), "single-label", "one for each input.*several labels per sample"),
        (np.tile([[1, 1, 0], [0, 1, 0]], (10, 1)), "auto", "label 1 is 1 of every sample.*say kind='multi-label'"),
        (np.zeros((20, 4, 4), dtype=int), "auto", "a label for each place of an input: segmentation is not supported"),
        (np.arange(20) / 3, "single-label", "label 1 is 0.33.*for amounts say kind='regression'"),
        (np.tile([[1, 0], [0, 1]], (10, 1)), "auto", "argmax of one-hot.*kind='multi-label'"),
    ],
)
def test_targets_of_other_tasks_are_refused(targets: Any, kind: Any, says: str) -> None:
    with pytest.raises(DataError, match=f"(?s){says}"):
        Dataset.from_arrays("mine", np.random.default_rng(0).random((20, 4, 4)), targets, kind=kind)
