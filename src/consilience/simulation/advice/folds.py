"""Which samples are held out in each repetition of a trial: every learner's samples, in equal parts, each part once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.randomness import random_bits

MIN_SAMPLES = 5
"""Of each learner: some are held out, some choose its own answer, and it trains on the others."""


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Folds:
    """What is held out in each repetition, and what learners have instead.

    held: of each repetition and learner, positions of the samples it holds out. kept: (repetitions, samples) which
    samples learners may train on.
    """

    held: list[list[np.ndarray]]
    kept: np.ndarray

    @property
    def samples(self) -> int:
        """How many samples are held out, those of all repetitions together."""
        return sum(len(mine) for held in self.held for mine in held)


def draw_folds(parts: Sequence[np.ndarray], samples: int, repetitions: int, seed: int) -> Folds:
    """Divide every learner's samples, at random, into as many parts as there are repetitions.

    parts: positions of each learner's samples. samples: how many there are in all.
    """
    for who, part in enumerate(parts):
        if len(part) < MIN_SAMPLES:
            raise ConfigurationError(
                f"learner {who} has {len(part)} training samples; a trial holds some of them out and trains on the "
                f"others, and needs {MIN_SAMPLES} or more of each learner: give it more, use fewer learners, or leave "
                f"it out"
            )
    divided = [_divided(_shuffled(part, seed, who), repetitions, who) for who, part in enumerate(parts)]
    held = [[np.sort(mine[repetition]) for mine in divided] for repetition in range(repetitions)]
    if not all(sum(map(len, mine)) for mine in held):
        raise ConfigurationError(
            f"seeds is {repetitions}, and with each seed learners hold another part of their samples out; these have "
            f"too few for so many: use fewer seeds, or give learners more samples"
        )
    kept = np.ones((repetitions, samples), dtype=bool)
    for mine, out in zip(kept, held, strict=True):
        mine[np.concatenate(out)] = False
    return Folds(held, kept)


def _divided(shuffled: np.ndarray, repetitions: int, who: int) -> list[np.ndarray]:
    """Equal parts, one for each repetition. With fewer samples than repetitions some are empty, others for others."""
    divided = np.array_split(shuffled, repetitions)
    first = who * len(shuffled) % repetitions if len(shuffled) < repetitions else 0
    return divided[-first:] + divided[:-first] if first else divided


def _shuffled(part: np.ndarray, seed: int, who: int) -> np.ndarray:
    """A learner's samples in an order that depends on the seed and the learner alone."""
    shuffled: np.ndarray = part[np.argsort(random_bits("trial", seed, who, np.arange(len(part))), kind="stable")]
    return shuffled


def without_tests(data: Dataset) -> Dataset:
    """The data set without its test part, so that nothing can be measured on it.

    A data set has a test part, so one training sample stands in for it; what is measured on that is not used.
    """
    return replace(data, test_inputs=data.inputs[:1], test_targets=data.targets[:1])
