"""Targets as users give them: the kind of task is found out, and what does not fit is refused with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.data.local_datasets import make_local_datasets
from consilience.data.readers.digits import read_digits
from consilience.errors import ConfigurationError, DataError
from consilience.simulation.setup.inputs import select_samples
from consilience.task import SINGLE_LABEL

N = 40
TABLE = np.random.default_rng(0).normal(size=(N, 3))
SETS = np.stack([np.arange(N) % 2, np.arange(N) % 3 == 0, np.arange(N) % 5 == 1], axis=1).astype(np.int64)
NUMBERS = TABLE @ np.array([3.0, -1.0, 0.5]) * 20 + 100


def test_the_kind_is_what_targets_look_like() -> None:
    labels = Dataset.from_arrays("mine", TABLE, SETS, labels=["even", "third", "fifth"])
    assert (labels.kind, labels.classes, labels.groups, labels.group_names[0]) == ("multi-label", 3, 3, "even")
    assert labels.targets.shape == (32, 3) and labels.targets.dtype == np.int64 and len(labels.test_targets) == 8
    assert "3 labels" in repr(labels)
    numbers = Dataset.from_arrays("mine", TABLE, NUMBERS)
    assert (numbers.kind, numbers.classes, numbers.groups) == ("regression", 1, 5)
    assert numbers.targets.mean() == pytest.approx(0, abs=1e-12) and numbers.targets.std() == pytest.approx(1)
    held = numbers.test_targets * numbers.target.std + numbers.target.mean
    assert np.isin(held.round(6), NUMBERS.round(6)).all()  # tests are standardized as the training part is
    assert Dataset.from_arrays("mine", TABLE, np.arange(N) % 2).target == SINGLE_LABEL


def test_a_kind_that_is_said_settles_what_is_ambiguous() -> None:
    whole = np.arange(float(N))
    assert Dataset.from_arrays("mine", TABLE, whole, kind="regression").kind == "regression"
    assert Dataset.from_arrays("mine", TABLE, np.arange(N), kind="regression").kind == "regression"
    one_hot = np.eye(2, dtype=int)[np.arange(N) % 2]
    assert Dataset.from_arrays("mine", TABLE, one_hot, kind="multi-label").classes == 2
    rare = SETS * [1, 1, 0]  # a member need not have every label
    assert Dataset.from_arrays("mine", TABLE, rare, kind="multi-label").group_counts(rare).tolist() == [20, 14, 0]


BAD: list[tuple[Any, str, str]] = [
    (np.arange(float(N)), "auto", "40 different whole numbers.*kind='single-label' for classes, kind='regression' for"),
    (
        np.r_[np.arange(N - 1) % 2, 0.5],
        "auto",
        r"whole numbers but for 1 of 40, the first of them 0\.5.*correct it, or",
    ),
    (np.eye(2, dtype=int)[np.arange(N) % 2], "auto", "one 1 in each row.*argmax of one-hot rows, or say kind='multi"),
    (SETS * [1, 0, 1], "auto", "label 1 is 0 of every sample.*leave its column out, or add samples"),
    (SETS * 2, "multi-label", "0 or 1 for each label, but sample 0 has 2.*write 1 where the sample has the label"),
    (SETS * np.nan, "multi-label", "but sample 0 has nan.*remove samples without known labels"),
    (SETS[:, 0], "multi-label", r"have the shape \(40, labels\).*say kind='single-label'"),
    (np.full(N, 2.5), "regression", "are all 2.5: a constant cannot be learned; give targets that differ"),
    (np.r_[NUMBERS[:-1], np.nan], "regression", "that of sample 39 is nan; 1 are not: remove such samples"),
    (np.stack([NUMBERS, NUMBERS], axis=1), "regression", r"got float64 of the shape \(40, 2\); choose one column"),
    (np.array(["a"] * N), "regression", "give one number each"),
    (NUMBERS, "single-label", "must be whole numbers from 0.*for amounts say kind='regression'"),
    (np.arange(N) * 3, "auto", "without gaps.*for amounts say kind='regression'"),
    (TABLE, "auto", r"0 or 1 for each, \(n, labels\)"),
    (np.zeros((N, 4, 4), dtype=int), "auto", "segmentation is not supported"),
]


@pytest.mark.parametrize(("targets", "kind", "says"), BAD)
def test_targets_that_do_not_fit_are_refused(targets: Any, kind: Any, says: str) -> None:
    with pytest.raises(DataError, match=f"(?s)data set 'mine'.*{says}"):
        Dataset.from_arrays("mine", TABLE, targets, kind=kind)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown kind 'multi'\. Did you mean 'multi-label'"):
        Dataset.from_arrays("mine", TABLE, SETS, kind="multi")  # type: ignore[arg-type]


def test_test_targets_are_of_the_same_kind() -> None:
    with pytest.raises(DataError, match="have 2 labels, training samples 3"):
        Dataset.from_arrays("mine", TABLE, SETS, TABLE, SETS[:, :2])
    with pytest.raises(DataError, match="test labels of a regression are finite numbers"):
        Dataset.from_arrays("mine", TABLE, NUMBERS, TABLE, NUMBERS * np.inf)


class Pairs:
    """A torch data set of these targets."""

    def __init__(self, targets: np.ndarray) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return TABLE[index], self.targets[index]


def test_torch_data_sets_may_have_labels_or_numbers() -> None:
    assert Dataset.from_torch(Pairs(SETS)).kind == "multi-label"
    assert Dataset.from_torch(Pairs(NUMBERS)).kind == "regression"


def test_data_of_each_learner_is_standardized_together() -> None:
    from consilience.data.own_data import to_dataset

    halves = [Dataset.from_arrays("a", TABLE[:20], NUMBERS[:20]), (TABLE[20:], NUMBERS[20:])]
    with pytest.raises(DataError, match="no test samples, and others have"):
        to_dataset(halves)
    together = to_dataset([(TABLE[:20], NUMBERS[:20]), (TABLE[20:], NUMBERS[20:])])
    assert isinstance(together, Dataset)
    assert together.kind == "regression" and together.targets.std() == pytest.approx(1)


# --- files


def write(path: Path, **columns: Any) -> Path:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_tables_have_a_number_or_several_label_columns(tmp_path: Path) -> None:
    inputs = {f"x{i}": TABLE[:, i] for i in range(3)}
    price = load(write(tmp_path / "price.csv", **inputs, price=NUMBERS), label="price")
    assert price.kind == "regression" and price.labels == ("price",) and price.columns == ("x0", "x1", "x2")
    tags = write(tmp_path / "tags.csv", **inputs, red=SETS[:, 0], round=SETS[:, 1])
    both = load(tags, label="red, round")
    assert both.kind == "multi-label" and both.labels == ("red", "round") and both.shape == (3,)
    count = write(tmp_path / "count.csv", **inputs, count=np.arange(N))
    assert load(count, label="count", kind="regression").kind == "regression"
    for options, says in (
        ({"label": "count"}, "40 different values.*for amounts say --kind regression"),
        ({"label": "count", "kind": "multi-label"}, "one column, 'count', is named; name the column of each label"),
    ):
        with pytest.raises(DataError, match=says):
            load(count, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 columns are named as labels, and kind is 'regression'"):
        load(tags, label="red,round", kind="regression")


def test_archives_have_labels_or_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "sets.npz", x=TABLE, y=SETS, classes=np.array(["a", "b", "c"]))
    assert load(tmp_path / "sets.npz").labels == ("a", "b", "c")
    np.savez(tmp_path / "whole.npz", x=TABLE, y=np.arange(float(N)))
    assert load(tmp_path / "whole.npz", kind="regression").kind == "regression"


def test_a_named_data_set_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match="kind is 'regression', and data set 'digits' is for single-label; leave kind"):
        load("digits", kind="regression")
    with pytest.raises(DataError, match="kind is 'multi-label', and data set 'mine' is for regression"):
        select_samples(Dataset.from_arrays("mine", TABLE, NUMBERS), make_config({"kind": "multi-label"}))
    with pytest.raises(ConfigurationError, match=r"classes is 3, and data set 'diabetes' is for regression.*leave it"):
        load("diabetes", classes=3)


def test_targets_may_be_a_column_and_of_any_scale() -> None:
    plain = Dataset.from_arrays("mine", TABLE, NUMBERS)
    column = Dataset.from_arrays("mine", TABLE, NUMBERS[:, None])
    assert column.target == plain.target and (column.targets == plain.targets).all()
    for scale in (1e-30, 1e12):
        scaled = Dataset.from_arrays("mine", TABLE, NUMBERS * scale, kind="regression")
        np.testing.assert_allclose(scaled.targets, plain.targets, rtol=1e-9)
        assert scaled.target.std == pytest.approx(plain.target.std * scale)
    with pytest.raises(DataError, match=r"up to 2.*e\+202, too large to be squared; give them in a larger unit"):
        Dataset.from_arrays("mine", TABLE, NUMBERS * 1e200, kind="regression")


def test_several_numbers_per_sample_are_refused_as_such() -> None:
    with pytest.raises(DataError, match=r"\(40, 2\), 2 numbers per sample, and one is learned: choose one column"):
        Dataset.from_arrays("mine", TABLE, np.stack([NUMBERS, NUMBERS], axis=1))


def test_a_label_of_one_sample_is_trained_on() -> None:
    for place in range(N):  # wherever it is, also among those that are held out for tests
        sets = np.column_stack([SETS, np.arange(N) == place]).astype(np.int64)
        found = Dataset.from_arrays("mine", TABLE, sets)
        assert found.targets[:, 3].sum() == 1 and found.test_targets[:, 3].sum() == 0
        assert len(found.targets) in (32, 33)


# --- built-in


def test_digit_pairs_are_labeled_with_the_digits_in_them() -> None:
    pairs, digits = load("digit-pairs"), read_digits()
    assert pairs.shape == (1, 8, 16) and pairs.targets.shape == (1000, 10) and len(pairs.test_targets) == 797
    known = {image.tobytes(): label for image, label in zip(digits.inputs, digits.targets, strict=True)}
    raw = (pairs.scaling.undo(pairs.inputs[:20]) * 16).round().astype(np.uint8)
    for image, labels in zip(raw, pairs.targets, strict=False):
        halves = {int(known[np.ascontiguousarray(half).tobytes()]) for half in (image[..., :8], image[..., 8:])}
        assert set(np.flatnonzero(labels).tolist()) == halves  # both halves are training digits


def test_diabetes_is_in_the_unit_of_its_progression() -> None:
    data = load("diabetes")
    assert (len(data.targets), len(data.test_targets), data.columns[2]) == (342, 100, "bmi")
    both = np.concatenate([data.targets, data.test_targets]) * data.target.std + data.target.mean
    assert (both.min().round(6), both.max().round(6)) == (25, 346)


# --- splits


def test_partitions_go_by_sets_of_labels_and_by_bins() -> None:
    for name in ("digit-pairs", "diabetes"):
        data = load(name)
        even = make_local_datasets(data, 3, partition="iid", seed=0)
        skewed = make_local_datasets(data, 3, partition="dirichlet(0.1)", seed=0)
        spread = [local.class_counts().std(axis=0).mean() for local in (even, skewed)]
        assert spread[1] > 4 * spread[0]
        assert sorted(np.concatenate(skewed.parts).tolist()) == list(range(len(data.targets)))


def test_shifts_of_labels_are_refused_and_those_of_inputs_are_not() -> None:
    data = load("digit-pairs")
    with pytest.raises(ConfigurationError, match=r"shift 'swap' changes the classes.*multi-label; use a shift of inp"):
        make_local_datasets(data, 3, shift="swap(0.8)", seed=0)
    assert make_local_datasets(data, 3, shift="noise(0.5)", seed=0).targets is data.targets
