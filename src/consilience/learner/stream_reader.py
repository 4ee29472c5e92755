"""Reads streamed samples batch by batch with a torch DataLoader, ahead of the steps that use them."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from consilience.data.stream import SampleStream
from consilience.errors import DataError

_CHUNK = 64  # samples that a process reads at once: passes without training take a thousand in one batch


@dataclass(frozen=True)
class UnreadableSample:
    """In the place of a sample: why it cannot be read. An error would lose its message on the way from a process."""

    reason: str


class StreamReader:
    """One DataLoader for all learners of a run, since its processes take long to start. It reads one pass at a time."""

    def __init__(self, stream: SampleStream) -> None:
        self.stream, self._planned = stream, _PlannedBatches()
        self._loader: DataLoader[Tensor | UnreadableSample] | None = None

    def batches(self, numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        """The samples of each batch, (rows, *shape), by their numbers, (rows, 1), on the device of these."""
        if self._loader is None:
            self._loader = self._make_loader()
        chunks = [torch.split(each[:, 0], _CHUNK) for each in numbers]
        self._planned.batches = [[int(n) for n in chunk.tolist()] for each in chunks for chunk in each]
        read = iter(self._loader)
        for each, several in zip(numbers, chunks, strict=True):
            yield torch.cat([self._checked(self._next(read)) for _ in several]).to(each)

    def close(self) -> None:
        """End the processes that read."""
        self._loader = None

    def _make_loader(self) -> DataLoader[Tensor | UnreadableSample]:
        workers = self.stream.workers
        return DataLoader(
            _ByNumber(self.stream),
            batch_sampler=self._planned,
            num_workers=workers,
            collate_fn=_stacked,
            generator=torch.Generator(),  # by default it would draw from the generator of the model's dropout
            persistent_workers=workers > 0,
            worker_init_fn=_ignore_interrupts,
        )

    def _next(self, read: Iterator[Tensor | UnreadableSample]) -> Tensor | UnreadableSample:
        try:
            return next(read)
        except DataError:
            raise
        except RuntimeError as error:  # of a process that was killed
            raise DataError(
                f"{self.stream.what}: a process that reads samples ended: {error}; give it more memory, or read "
                f"without such processes: workers=0"
            ) from error

    def _checked(self, batch: Tensor | UnreadableSample) -> Tensor:
        if isinstance(batch, UnreadableSample):
            raise DataError(batch.reason)
        return batch


class _PlannedBatches:
    """The numbers of the samples of each batch of the next pass."""

    batches: Sequence[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _ByNumber(Dataset[Tensor | UnreadableSample]):
    """Samples of a stream as a DataLoader reads them."""

    def __init__(self, stream: SampleStream) -> None:
        self.stream = stream

    def __getitem__(self, number: int) -> Tensor | UnreadableSample:
        try:
            return torch.from_numpy(self.stream.read(number))
        except DataError as error:
            return UnreadableSample(str(error))


def _stacked(samples: Sequence[Tensor | UnreadableSample]) -> Tensor | UnreadableSample:
    tensors = [each for each in samples if isinstance(each, Tensor)]
    if len(tensors) == len(samples):
        return torch.stack(tensors)
    return next(each for each in samples if isinstance(each, UnreadableSample))


def _ignore_interrupts(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
