"""How batches are read: which call of the model they are, what their targets are, and what is refused."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from consilience.errors import ConfigurationError
from consilience.peer.batches import batches_of, read_batch
from consilience.peer.called_model import CalledModel
from consilience.peer.one_pass import count_classes, one_pass
from consilience.task import Task

X, M, Y = torch.tensor([[1.0], [2.0]]), torch.tensor([[3], [4]]), torch.tensor([0, 2])
Pair = namedtuple("Pair", "inputs targets")


class Called(nn.Module):
    """Notes how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.seen: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def forward(self, *positional: Any, **named: Any) -> None:
        self.seen = positional, named


@pytest.mark.parametrize(
    ("batch", "positional", "named"),
    [
        ((X, Y), [X], {}),
        ([X, Y], [X], {}),
        (Pair(X, Y), [X], {}),
        ((X.numpy(), Y.numpy()), [X], {}),
        ((X, M, Y), [X, M], {}),
        (((X, M), Y), [X, M], {}),
        (({"ids": M, "mask": X}, Y), [], {"ids": M, "mask": X}),
        ({"ids": M, "labels": Y}, [], {"ids": M}),
        (UserDict({"target": Y, "ids": M, "n": 3}), [], {"ids": M, "n": 3}),  # as a tokenizer's BatchEncoding
        ((X, {"mask": M}, Y.tolist()), [X, {"mask": M}], {}),
    ],
)
def test_batches_are_calls_of_the_model(batch: Any, positional: list[Any], named: dict[str, Any]) -> None:
    call, targets = read_batch(batch)
    assert torch.equal(targets, Y)
    model = Called()
    call.run(model)
    seen, by_name = model.seen
    assert_same(list(seen), positional)
    assert_same(by_name, named)


def assert_same(seen: Any, expected: Any) -> None:
    """Equal values, with floating-point tensors in the model's precision."""
    if isinstance(expected, Tensor):
        wanted = expected.double() if expected.is_floating_point() else expected
        assert isinstance(seen, Tensor) and seen.dtype == wanted.dtype and torch.equal(seen, wanted)
    elif isinstance(expected, dict):
        assert list(seen) == list(expected)
        for key in expected:
            assert_same(seen[key], expected[key])
    elif isinstance(expected, list):
        assert len(seen) == len(expected)
        for one, other in zip(seen, expected, strict=True):
            assert_same(one, other)
    else:
        assert seen == expected


def test_unpack_reads_any_other_batch() -> None:
    call, targets = read_batch({"a": X, "b": Y}, lambda batch: ((batch["a"], M), batch["b"]))
    assert call.positional[1] is M and torch.equal(targets, Y)
    assert count_classes([(0, Y, "names")], Task(3, 1), lambda batch: batch[:2]).tolist() == [1, 0, 1]
    with pytest.raises(ConfigurationError, match=r"unpack returned Tensor; it must return \(inputs, targets\)"):
        read_batch((X, Y), lambda batch: batch[0])


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (X, r"yields Tensor, without targets; .* \(inputs, targets\).*unpack="),
        ((X,), r"yields a tuple of 1, without targets; .*unpack="),
        ({"ids": M}, r"mapping of ids, which has no key for targets; name exactly one .* labels or label .*unpack="),
        ({"ids": M, "y": Y, "label": Y}, r"more than one key for targets, label, y;.*unpack="),
        ((X, ["cat", "dog"]), r"targets, the last item of its batches, are a list of 2, and no numbers; .*unpack="),
        ((X, None), r"are NoneType, and no numbers; .*unpack="),
        ((X, Y, 3), r"the last item of its batches, are one number .*unpack="),
    ],
)
def test_batches_without_usable_targets_are_refused(batch: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_batch(batch)


def test_samples_that_a_loader_cannot_stack_are_refused_with_how_to_pad_them() -> None:
    ragged: Any = [(torch.zeros(length), 0) for length in (3, 5)]
    for workers in (0, 1):
        loader = DataLoader(ragged, 2, num_workers=workers, multiprocessing_context="fork" if workers else None)
        with pytest.raises(ConfigurationError, match=r"different lengths; pad .*pad_sequence.*DataCollatorWithPad"):
            list(batches_of(loader))
    with pytest.raises(RuntimeError, match="of the loader's own"):
        list(batches_of(_failing()))


@pytest.mark.parametrize("stack", [torch.tensor, default_collate, lambda rows: np.stack([np.array(r) for r in rows])])
def test_lists_and_arrays_of_different_lengths_are_refused_with_how_to_pad_them(stack: Any) -> None:
    """As torch, the default_data_collator of Hugging Face and NumPy stack samples that are lists."""
    samples = [[1, 2, 3], [1, 2]]
    with pytest.raises(ConfigurationError, match=r"different lengths; pad .*pad_sequence"):
        list(batches_of(DataLoader(samples, 2, collate_fn=stack)))  # type: ignore[arg-type]


def test_an_array_of_sequences_is_refused_with_how_to_pad_them() -> None:
    ragged = np.array([np.ones(3), np.ones(2)], dtype=object)
    call, _ = read_batch((ragged, Y))
    with pytest.raises(ConfigurationError, match=r"an array of objects, .*different lengths; pad .*pad_sequence"):
        call.run(nn.Linear(3, 2))


def test_a_list_of_sequences_is_refused_with_how_to_pad_them() -> None:
    """They are read as several inputs, which a model with one cannot take."""
    linear = nn.Linear(3, 2)
    for ragged in ([torch.ones(3), torch.ones(2)], [[[1.0], [2.0, 3.0]], [[4.0]]]):
        with pytest.raises(ConfigurationError, match=r"too many positional .*different lengths, pad .*pad_sequence"):
            one_pass(CalledModel(linear, linear), [(ragged, Y)], Task(3, 3), represent=True)


def _failing() -> Iterator[Any]:
    yield X, Y
    raise RuntimeError("an error of the loader's own")


def test_integer_arrays_stay_integers() -> None:
    call, _ = read_batch((np.array([[1]]), Y))
    assert call.integer_inputs is not None and call.integer_inputs.dtype == torch.int64
