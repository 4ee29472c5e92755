"""Samples that stay in torch data sets: the same bits as in memory, in bounded memory, and errors by sample."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import Dataset, Result, build_method, simulate
from consilience.config.config import make_config
from consilience.errors import ConfigurationError, DataError
from consilience.simulation.engines.choose import choose_engine
from consilience.simulation.setup.setup import build_setup
from tests.simulation.test_field_inputs import MaskedMean, token_arrays

SIDE = 6


class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Images made when they are read, the class of which is how bright they are."""

    def __init__(self, samples: int, seed: int = 0, broken: int | None = None) -> None:
        self.samples, self.seed, self.broken = samples, seed, broken

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= self.samples:
            raise IndexError(index)
        if index == self.broken:
            raise ValueError("truncated file")
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        return torch.randn(1, SIDE, SIDE, generator=generator) + index % 3, index % 3


class Net(nn.Module):
    """A convolution, normalization, dropout and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 6, 6) -> (n, 3)."""
        logits: Tensor = self.fc(self.drop(torch.tanh(self.norm(self.conv(x)))).mean((2, 3)))
        return logits


TRAIN, TEST = Pictures(96), Pictures(30, seed=1)
SETTINGS: dict[str, Any] = {"model": Net, "learners": 3, "rounds": 3, "epochs": 2, "batch_size": 8, "engine": "loop"}


def samples_of(pictures: Pictures) -> list[tuple[Tensor, int]]:
    return [pictures[index] for index in range(len(pictures))]


def in_memory() -> Dataset:
    arrays = [
        (torch.stack([x for x, _ in half]), [y for _, y in half]) for half in (samples_of(TRAIN), samples_of(TEST))
    ]
    return Dataset.from_arrays("pictures", *arrays[0], *arrays[1], scaling="none")


def streamed(**options: Any) -> Dataset:
    return Dataset.streamed(TRAIN, TEST, name="pictures", **options)


def run(data: Dataset, **settings: Any) -> Result:
    return simulate(data=data, **SETTINGS | {"workers": 0} | settings)


def same_bits(first: Result, second: Result) -> None:
    for key in ("accuracy", "accuracy_own", "accuracy_validation", "loss.cross_entropy"):
        if key in first.history:
            np.testing.assert_array_equal(first.history[key], second.history[key])
    for learner in range(3):
        mine, theirs = (each.model(learner).state_dict() for each in (first, second))
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedavg"},
        {"method": "consilience", "validation": 0.2, "partition": "dirichlet(1)"},
        {"method": "representation-sharing", "participation": 0.7, "offline": 0.2, "shift": "swap(0.5)"},
        {"method": "two-stage", "model": "mlp", "optimizer": "sgd"},
        {"method": "fedavg", "augment": "flip", "seeds": 2},
        {"method": "fedavg", "probe": "linear", "watch": "features.model.conv"},
    ],
    ids=["fedavg", "consilience", "representations", "two-stage", "augmented", "probed"],
)
def test_streamed_samples_give_the_bits_of_samples_in_memory(settings: dict[str, Any]) -> None:
    same_bits(run(in_memory(), **settings), run(streamed(), **settings))


def test_processes_that_read_ahead_do_not_change_the_bits() -> None:
    targets = [n % 3 for n in range(96)], [n % 3 for n in range(30)]
    settings = {"method": "consilience", "validation": 0.2}
    same_bits(run(in_memory(), **settings), run(streamed(workers=2, targets=targets), **settings))


def test_inputs_of_several_fields_are_streamed_too() -> None:
    fields, targets = token_arrays()
    samples = [
        {**{name: values[n] for name, values in fields.items()}, "label": int(targets[n])} for n in range(len(targets))
    ]
    settings = {"model": MaskedMean, "method": "consilience"}
    make = Dataset.from_torch, Dataset.streamed
    same_bits(*(run(each(samples, samples[:20]), **settings) for each in make))


def test_without_a_test_set_the_same_samples_are_held_out() -> None:
    data = Dataset.streamed(TRAIN, targets=[n % 3 for n in range(96)])
    memory = Dataset.from_torch(samples_of(TRAIN))
    np.testing.assert_array_equal(data.test_targets, memory.test_targets)
    assert data.shape == (1, SIDE, SIDE)
    assert data.inputs.nbytes < 4 * 96


def test_stopped_and_resumed_gives_the_same_bits(tmp_path: Path) -> None:
    whole = run(streamed(), out=tmp_path / "whole")

    def stop(method: str, round_: int, rounds: int, history: Any) -> None:
        if round_ == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(streamed(), out=tmp_path / "part", on_round=stop)
    same_bits(whole, simulate(resume=tmp_path / "part", data=streamed(), model=Net))


class Counted(Pictures):
    """Counts how many of its samples are in memory at most."""

    alive = most = reads = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        values = np.array(x.numpy()).view(_Sample)
        self.reads += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(values, self._freed)
        return values, y  # type: ignore[return-value]

    def _freed(self) -> None:
        self.alive -= 1


class _Sample(np.ndarray[Any, Any]):  # an array that can be followed until it is freed
    pass


@pytest.mark.parametrize("samples", [120, 480])
def test_memory_does_not_grow_with_the_data(samples: int) -> None:
    train, test = Counted(samples), Counted(60)
    gc.collect()
    data = Dataset.streamed(train, test)
    assert train.most <= 4
    simulate(data=data, **SETTINGS | {"workers": 0, "rounds": 1, "epochs": 1}, method="consilience", validation=0.2)
    assert train.reads > 2 * samples  # targets, and an epoch
    assert max(train.most, test.most) <= 64 + 8  # a chunk that is read at once


def test_an_unreadable_sample_is_named(tmp_path: Path) -> None:
    targets = [n % 3 for n in range(96)], [n % 3 for n in range(30)]
    for workers in (0, 1):
        data = Dataset.streamed(Pictures(96, broken=41), TEST, targets=targets, workers=workers, name="pictures")
        with pytest.raises(DataError, match=r"training: sample 41 cannot be read: ValueError: truncated file"):
            run(data)


class Odd(Pictures):
    """A data set with one sample that is not like the others."""

    def __init__(self, sample: Any) -> None:
        super().__init__(96)
        self.sample = sample

    def __getitem__(self, index: int) -> Any:
        return self.sample if index == 50 else super().__getitem__(index)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ((torch.full((1, SIDE, SIDE), torch.nan), 0), r"training: sample 50 has 36 values that are not finite; leave"),
        (
            (torch.zeros(1, SIDE, SIDE + 1), 0),
            r"sample 50 is float32 of the shape \(1, 6, 7\), but sample 0 is",
        ),
        ((torch.zeros(1, SIDE, SIDE),), r"training: sample 50 must be a pair \(input, label\), got tuple"),
    ],
)
def test_a_sample_unlike_the_others_is_named(sample: Any, said: str) -> None:
    data = Dataset.streamed(Odd(sample), TEST, targets=([n % 3 for n in range(96)], [n % 3 for n in range(30)]))
    with pytest.raises(DataError, match=said):
        run(data)


def test_a_whole_number_too_large_is_named() -> None:
    samples = [({"ids": torch.tensor([n if n != 7 else 2**24 + 1])}, n % 2) for n in range(20)]
    data = Dataset.streamed(samples, samples[:4])

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.fc(ids.float())  # type: ignore[no-any-return]

    with pytest.raises(DataError, match=r"sample 7, field 'ids' has whole numbers .*16,777,216"):
        run(data, model=Small, rounds=1)


class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        yield from samples_of(TRAIN)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Dataset.streamed(Endless()),  # type: ignore[arg-type]
            r"got Endless; read an iterable one into a list first, or index its",
        ),
        (
            lambda: Dataset.streamed(torch.utils.data.DataLoader(TRAIN, 8)),  # type: ignore[arg-type]
            r"a DataLoader yields batches, .*give the samples, loader\.dataset, and batch_size",
        ),
        (
            lambda: simulate(data=torch.utils.data.DataLoader(TRAIN, 8)),  # type: ignore[arg-type]
            r"data: a DataLoader yields batches, .*loader\.dataset",
        ),
        (lambda: Dataset.streamed([]), r"the data set is empty"),
        (
            lambda: Dataset.streamed([(np.zeros((3, 8, 8), dtype=np.uint8), n % 2) for n in range(9)]),
            r"samples are images of bytes, and streamed samples are not scaled; turn them into floats .*ToTensor",
        ),
        (
            lambda: Dataset.streamed(TRAIN, TEST, targets=[0, 1]),
            r"must be a pair, \(training, test\), got 1",
        ),
        (lambda: Dataset.streamed(TRAIN, TEST, targets=([0, 1], [0])), r"must have the shape \(96,\)"),
        (
            lambda: Dataset.streamed(TRAIN, [(torch.zeros(1, 2, 2), 0)]),
            r"training inputs are one array \(float32 of the shape \(1, 6, 6\)\), test inputs .*give both one form",
        ),
    ],
)
def test_streams_that_cannot_be_read_are_refused(make: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        make()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"engine": "stack"},
            r"'pictures' is streamed, and learners that train together need .* in memory; leave out engine = 'stack'",
        ),
        (
            {"workers": 2},
            r"workers is 2, .*'pictures' is streamed, .*give Dataset.streamed its own, workers=2",
        ),
        (
            {"shift": "rotate(60)"},
            r"shift 'rotate' changes .*are streamed; use a shift of labels, or change",
        ),
    ],
)
def test_what_streams_cannot_do_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run(streamed(), **settings)


def test_auto_does_not_stack_streamed_samples() -> None:
    config = make_config({"learners": 16, "batch_size": 4, "model": "mlp"})
    for data, engine in ((in_memory(), "stack"), (streamed(), "loop")):
        setup = build_setup(config, build_method("fedavg"), data, ["mlp"])
        assert choose_engine(config, setup) == engine
