"""Inputs of several arrays: packed into rows and unpacked again, scaled by field, and refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from consilience.data import Dataset, Scaling, describe_dataset
from consilience.data.description import dataset_sha256
from consilience.errors import DataError
from consilience.input_fields import InputField, InputFields

Y = np.array([0, 1] * 5)
IDS = np.arange(30).reshape(10, 3)
MASK = np.arange(30).reshape(10, 3) % 4 > 0
TABLE = np.stack([np.arange(10.0), 2 * np.arange(10.0) + 5], axis=1)
IMAGES = np.arange(10 * 4, dtype=np.uint8).reshape(10, 2, 2, 1)


def test_fields_are_packed_one_after_the_other_and_unpacked_with_their_types() -> None:
    data = Dataset.from_arrays("d", {"ids": IDS, "mask": MASK}, Y, IDS_TEST, Y[:2])
    assert data.shape == (6,)
    assert data.fields == InputFields(
        (InputField("ids", (3,), "integer"), InputField("mask", (3,), "bool")), named=True
    )
    np.testing.assert_array_equal(data.inputs[1], [3, 4, 5, 1, 0, 1])
    given, named = data.fields.unpack(torch.from_numpy(data.inputs))
    assert not given
    assert (named["ids"].dtype, named["mask"].dtype) == (torch.int64, torch.bool)
    np.testing.assert_array_equal(named["ids"], IDS)
    np.testing.assert_array_equal(named["mask"], MASK)


IDS_TEST = {"ids": IDS[:2], "mask": MASK[:2]}


def test_a_tuple_is_fields_by_position_each_scaled_as_if_it_were_alone() -> None:
    data = Dataset.from_arrays("d", (IMAGES, TABLE, IDS), Y, (IMAGES[:2], TABLE[:2], IDS[:2]), Y[:2])
    assert data.fields is not None
    assert data.fields.names == ("0", "1", "2")
    (images, table, ids), named = data.fields.unpack(torch.from_numpy(data.inputs))
    assert not named
    assert images.shape == (10, 1, 2, 2)  # channels first
    alone = Dataset.from_arrays("i", IMAGES, Y, IMAGES[:2], Y[:2]).inputs
    np.testing.assert_array_equal(images, alone)
    np.testing.assert_array_equal(table, Dataset.from_arrays("t", TABLE, Y, TABLE[:2], Y[:2]).inputs)
    np.testing.assert_array_equal(ids, IDS)
    assert [field.scaling.kind for field in data.scaling.fields] == ["pixels", "columns", "none"]


def test_scaling_by_field_and_none_at_all() -> None:
    fields = {"image": IMAGES, "row": TABLE}
    some = Dataset.from_arrays("d", fields, Y, fields, Y, scaling={"row": "none"})
    np.testing.assert_array_equal(some.inputs[:, 4:], TABLE)
    assert abs(some.inputs[:, :4].mean()) < 1e-6
    plain = Dataset.from_arrays("d", fields, Y, fields, Y, scaling="none")
    np.testing.assert_array_equal(plain.inputs[0], [0, 1, 2, 3, 0, 5])


def test_a_scaling_comes_back_from_its_record_and_undoes_itself() -> None:
    data = Dataset.from_arrays("d", {"image": IMAGES, "row": TABLE, "ids": IDS}, Y)
    again = Scaling.from_record(data.scaling.record())
    assert again == data.scaling
    raw = again.undo(data.inputs)
    np.testing.assert_allclose(again.apply(raw), data.inputs, atol=1e-6)
    assert data.fields is not None
    assert data.fields.split(raw)[0].dtype == np.uint8
    assert InputFields.from_record(data.fields.record()) == data.fields


def test_wide_floats_are_centered_in_float64() -> None:
    wide = 1e9 + np.arange(10.0)[:, None]
    data = Dataset.from_arrays("d", {"x": wide, "ids": IDS}, Y, {"x": wide[:2], "ids": IDS[:2]}, Y[:2])
    np.testing.assert_allclose(data.inputs[:, 0], (np.arange(10) - 4.5) / np.std(np.arange(10)), atol=1e-6)


def test_the_largest_whole_number_is_exact_and_a_larger_one_is_refused() -> None:
    ids = np.full((10, 1), 2**24)
    ids[0] = 2**24 - 1
    data = Dataset.from_arrays("d", {"ids": ids}, Y, {"ids": ids}, Y)
    assert data.fields is not None
    np.testing.assert_array_equal(data.fields.unpack(torch.from_numpy(data.inputs))[1]["ids"], ids)
    with pytest.raises(DataError, match=r"field 'ids' has whole numbers from 0 to 16777217, .*number its values 0, 1"):
        Dataset.from_arrays("d", {"ids": np.array([[0], [2**24 + 1]] * 5)}, Y)


def test_fields_are_part_of_the_fingerprint_and_the_record() -> None:
    first = Dataset.from_arrays("d", {"a": IDS, "b": MASK}, Y)
    renamed = Dataset.from_arrays("d", {"a": IDS, "c": MASK}, Y)
    assert dataset_sha256(first) != dataset_sha256(renamed)
    assert describe_dataset(first)["fields"]["fields"][1] == {"name": "b", "shape": [3], "kind": "bool"}
    assert "a (3 integer), b (3 bool)" in repr(first)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, r"empty dict; give one array for each argument of the model's forward"),
        ((), r"empty tuple; give one array"),
        ({"ids": IDS, "mask": MASK[:9]}, r"field 'mask' has 9 samples, and field 'ids' has 10; give one entry"),
        ({"ids": IDS, "text": np.array(["a"] * 10)}, r"field 'text' must be real numbers, got text; number its tokens"),
        ({"ids": np.array([object()] * 10)}, r"field 'ids' must be real numbers, got Python objects"),
        ({"x": np.where(MASK, 1.0, np.nan)}, r"field 'x' must be finite, but 8 values are not, .*remove such samples"),
        (
            {"ids": [[1]] * 9 + [[1, 2]]},
            r"field 'ids' are sequences of different lengths, 1 to 2; .*pad_sequences",
        ),
        ({"my ids": IDS}, r"field named 'my ids'; use the names of the arguments of the model's forward"),
        ({7: IDS}, r"field named 7; use the names"),
        ({"x": np.ones((10, 2))}, r"field 'x': the columns 0, 1 each .*scaling=\{'x': 'none'\}"),
    ],
)
def test_bad_fields_are_refused(inputs: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Dataset.from_arrays("d", inputs, Y)


def test_other_fields_for_tests_are_refused() -> None:
    with pytest.raises(DataError, match=r"inputs are ids \(3 integer\), test inputs a single array; give both"):
        Dataset.from_arrays("d", {"ids": IDS}, Y, IDS, Y)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (
            "columns",
            r"'columns' is for a single array, .*say it by field, such as scaling=\{'ids': 'columns'\}",
        ),
        ({"rows": "none"}, r"scaling names the field 'rows', and there are ids, row"),
        ({"ids": "pixels"}, r"field 'ids' holds integer values, which are not scaled"),
    ],
)
def test_scalings_that_do_not_suit_the_fields_are_refused(scaling: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Dataset.from_arrays("d", {"ids": IDS, "row": TABLE}, Y, scaling=scaling)
