"""Sequences of different lengths, samples of torch data sets with several inputs, and files with several arrays."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from consilience.data import Dataset, load, pad_sequences
from consilience.errors import ConfigurationError, DataError


def test_sequences_are_padded_cut_and_masked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "consilience"):
        fields = pad_sequences([[4, 5, 6, 7], [8], torch.tensor([9, 9])], length=3, pad=-1, names=("ids", "mask"))
    np.testing.assert_array_equal(fields["ids"], [[4, 5, 6], [8, -1, -1], [9, 9, -1]])
    np.testing.assert_array_equal(fields["mask"], [[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    assert fields["ids"].dtype == np.int64 and fields["mask"].dtype == np.bool_
    assert "1 of 3 sequences are longer than 3 and lose their end" in caplog.text


def test_sequences_of_vectors_keep_their_width() -> None:
    fields = pad_sequences([np.ones((2, 3)), np.full((1, 3), 2.0)])
    np.testing.assert_array_equal(fields["input_ids"], [[[1, 1, 1], [1, 1, 1]], [[2, 2, 2], [0, 0, 0]]])


@pytest.mark.parametrize(
    ("sequences", "settings", "said"),
    [
        ([], {}, r"sequences are \[\]; give a list with one list or array of numbers per sample"),
        ("abc", {}, r"sequences are 'abc'; give a list"),
        (["abc", "d"], {}, r"sequence 0 is text, 'abc'; number its tokens first, with a tokenizer"),
        ([[1], ["a"]], {}, r"sequence 1 must be numbers .*number its tokens first"),
        ([[1], []], {}, r"sequence 1 is empty; leave the sample out, or give it one token"),
        ([[1], [1.5]], {}, r"sequence 1 has entries of float64 .*and sequence 0 of int64 .*; give all one shape and"),
        ([np.ones((2, 3)), np.ones((2, 4))], {}, r"sequence 1 has entries of float64 of the shape \(4,\)"),
        ([[1, 2], [3]], {"pad": 0.5}, r"pad is 0.5, and the sequences hold whole numbers; pad with one, such as 0"),
        ([[1, [2, 3]]], {}, r"sequence 0 cannot be read as an array"),
    ],
)
def test_bad_sequences_are_refused(sequences: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        pad_sequences(sequences, **settings)


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="length"):
        pad_sequences([[1]], 0)


PAIRS = [({"ids": torch.tensor([n, n + 1]), "mask": torch.tensor([True, n % 3 > 0])}, n % 2) for n in range(10)]


def test_samples_of_torch_may_be_dictionaries_with_or_without_their_label() -> None:
    pairs = Dataset.from_torch(PAIRS, PAIRS[:2])
    whole = Dataset.from_torch([{**fields, "labels": y} for fields, y in PAIRS], PAIRS[:2])
    own = [{**fields, "sort": y} for fields, y in PAIRS]
    renamed = Dataset.from_torch(own, own[:2], label_key="sort")
    assert pairs.fields is not None
    assert pairs.fields.describe() == "ids (2 integer), mask (2 bool)"
    np.testing.assert_array_equal(pairs.inputs[4], [4, 5, 1, 1])
    for other in (whole, renamed):
        np.testing.assert_array_equal(pairs.inputs, other.inputs)
        np.testing.assert_array_equal(pairs.targets, other.targets)


def test_samples_of_torch_may_be_tuples() -> None:
    samples = [((np.full((3, 3), n / 9), np.array([n, -n])), n % 2) for n in range(10)]
    data = Dataset.from_torch(samples, samples)
    assert data.fields is not None
    assert not data.fields.named
    assert data.fields.describe() == "0 (3 x 3 float), 1 (2 integer)"


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([*PAIRS, ({"ids": torch.tensor([1, 2, 3]), "mask": torch.tensor([True, True])}, 0)],
         r"sample 10, field 'ids', is int64 of the shape \(3,\), but sample 0 is .*as pad_sequences does"),
        ([*PAIRS, ({"ids": torch.tensor([1, 2])}, 0)],
         r"sample 10 has ids, but sample 0 has ids, mask; give all the same fields"),
        ([({"ids": [1, 2], "text": "abc"}, 0)] * 3, r"field 'text' must be real numbers, got text; number its tokens"),
        ([{"ids": [1, 2], "kind": 0}] * 3, r"dictionaries with no label, and keys ids, kind; name the label's"),
        ([{"ids": [1], "label": 0, "target": 1}] * 3, r"dictionaries with label and target, .*name the label's key"),
        ([(np.ones(2), np.ones(2), 0)] * 3, r"sample 0 must be a pair \(input, label\), got tuple of 3; put the"),
        ([({}, 0)] * 3, r"empty dict; give one array for each argument of the model's forward"),
    ],
)  # fmt: skip
def test_bad_samples_of_torch_are_refused(samples: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Dataset.from_torch(samples)


def test_iterable_data_sets_are_refused_with_the_way_out() -> None:
    class Numbers(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from PAIRS

    with pytest.raises(DataError, match=r"got Numbers; read an iterable one into a list first, or index its"):
        Dataset.from_torch(cast(Any, Numbers()))


def test_a_file_with_several_arrays_has_fields(tmp_path: Path) -> None:
    ids = np.arange(20).reshape(10, 2)
    fields: dict[str, Any] = {"x.input_ids": ids, "x.attention_mask": np.ones((10, 2), dtype=bool)}
    file = tmp_path / "reviews.npz"
    np.savez(file, y=np.arange(10) % 2, **fields)
    data = load(file)
    assert data.fields is not None
    assert data.fields.describe() == "input_ids (2 integer), attention_mask (2 bool)"
    assert data.shape == (4,)
    np.savez(file, y=np.arange(10) % 2, x=ids, **{"x.input_ids": fields["x.input_ids"]})
    with pytest.raises(DataError, match=r"inputs as one array and as the fields input_ids; keep one of the two"):
        load(file)


def test_one_data_set_for_each_learner_may_have_fields() -> None:
    from consilience.data.own_data import to_dataset

    fields = {"ids": np.arange(20).reshape(10, 2), "amount": np.arange(10.0)}
    y = np.arange(10) % 2
    data = to_dataset([(fields, y), Dataset.from_arrays("b", fields, y, fields, y, scaling={"amount": "none"})][:1])
    assert isinstance(data, Dataset)
    assert data.fields is not None
    assert data.fields.describe() == "ids (2 integer), amount (one float)"
    same = Dataset.from_arrays("b", fields, y, fields, y, scaling={"amount": "none"})
    both = to_dataset([same, same])
    assert isinstance(both, Dataset)
    np.testing.assert_array_equal(both.inputs, np.concatenate([same.inputs, same.inputs]))
    with pytest.raises(DataError, match=r"learner 1 has inputs of one array, and learner 0 of ids .*; give all"):
        to_dataset([(fields, y), (fields["ids"], y)])
