"""What every library of the peers' benchmark is given: images, learners, steps; and how it ends a round."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = 10
_HEADER = {"images": 16, "labels": 8}  # bytes


@dataclass(frozen=True)
class Work:
    """The same for every library; learner i has the images from i * samples on."""

    method: str  # fedavg or fedproto
    learners: int
    samples: int  # of each learner
    rounds: int
    cores: int
    data: str  # the folder with MNIST's four files
    batch_size: int = 32
    lr: float = 1e-3
    kd: float = 10.0  # weight of the distance to prototypes

    def learner_data(self, learner: int) -> tuple[Tensor, Tensor]:
        """A learner's images (samples, 1, 28, 28) and labels (samples,)."""
        inputs, targets = train_images(self.data, self.learners * self.samples)
        chosen = slice(learner * self.samples, (learner + 1) * self.samples)
        return inputs[chosen], targets[chosen]


def read_work() -> Work:
    """The work that run.py gave on the command line."""
    return Work(**json.loads(sys.argv[1]))


class Turns:
    """Tells run.py that rounds are over, and waits until it says how many are next, so that libraries take turns."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a library prints is no message to run.py
        self._left = 1  # the first round comes with the start

    def end_of_round(self) -> None:
        """After each round: waits where the turn is over."""
        self._left -= 1
        if self._left == 0:
            self.report(done=True)
            self._left = int(sys.stdin.readline())

    def report(self, **found: object) -> None:
        self._out.write(json.dumps(found) + "\n")
        self._out.flush()


@lru_cache
def train_images(folder: str, count: int) -> tuple[Tensor, Tensor]:
    """The first images (count, 1, 28, 28), with mean 0 and deviation 1, and their labels (count,)."""
    inputs, targets = _read(folder, "train", count)
    return _standardized(folder, inputs, count), targets


def test_images(folder: str, count: int) -> tuple[Tensor, Tensor]:
    """All test images (10000, 1, 28, 28), scaled as the first `count` images for training, and their labels."""
    inputs, targets = _read(folder, "t10k", None)
    return _standardized(folder, inputs, count), targets


@torch.no_grad()
def mean_accuracy(models: Iterable[nn.Module], work: Work) -> float:
    """Percent of the test images that the models get right, on average."""
    inputs, targets = test_images(work.data, work.learners * work.samples)
    batches = list(zip(torch.split(inputs, 500), torch.split(targets, 500), strict=True))
    found = []
    for model in models:
        model.eval()
        right = [(model(x).argmax(1) == y).sum() for x, y in batches]
        found.append(100 * int(torch.stack(right).sum()) / len(targets))
    return float(np.mean(found))


def _standardized(folder: str, inputs: Tensor, count: int) -> Tensor:
    train, _ = _read(folder, "train", count)
    return (inputs - train.mean()) / train.std()


@lru_cache
def _read(folder: str, part: str, count: int | None) -> tuple[Tensor, Tensor]:
    images, labels = (_idx(Path(folder) / f"{part}-{kind}-ubyte.gz", count) for kind in ("images-idx3", "labels-idx1"))
    inputs = torch.from_numpy(images.reshape(-1, 1, 28, 28).astype(np.float32) / 255)
    return inputs, torch.from_numpy(labels.astype(np.int64))


def _idx(path: Path, count: int | None) -> np.ndarray:
    """The values of an idx file: of its first `count` images or labels."""
    kind = "images" if "images" in path.name else "labels"
    size = 28 * 28 if kind == "images" else 1
    with gzip.open(path) as file:
        file.read(_HEADER[kind])
        values = file.read(-1 if count is None else count * size)
    return np.frombuffer(values, dtype=np.uint8)
