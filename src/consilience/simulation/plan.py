"""Who works in a round and on which samples, decided before the round by hashing alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.randomness import uniform

Indices = NDArray[np.int64]


def batches(
    seed: int, round_: int, learner: int, size: int, batch: int, epochs: int, *, even: bool, least: int
) -> list[Indices]:
    """The mini-batches of a learner in a round, as positions among its samples; a fresh shuffle each epoch.

    even: the last partial batch stays partial, as published; else it is filled up from the learner's own shuffle, so
    that all batches of a cohort have one shape. least: no batch is smaller, for BatchNorm needs two samples.
    """
    planned = []
    for epoch in range(epochs):
        order = uniform("shuffle", seed, round_, epoch, learner, np.arange(size)).argsort(kind="stable")
        steps = -(-size // batch)
        if even:
            short = size - (steps - 1) * batch
            order = np.concatenate([order, order[: max(least - short, 0)]])
        else:
            order = np.resize(order, steps * batch)
        planned += [order[i * batch : (i + 1) * batch] for i in range(steps)]
    return planned


@dataclass(frozen=True)
class Presence:
    """Who trains and who can be reached in a round, (federations, learners) each."""

    participates: NDArray[np.bool_]
    online: NDArray[np.bool_]

    @property
    def exchanges(self) -> NDArray[np.bool_]:
        """Who both trains and can be reached."""
        return self.participates & self.online


def presences(seeds: Sequence[int], round_: int, learners: int, participation: float, offline: float) -> Presence:
    """Draw a round's presence in every federation: a fixed number of participants, and each offline by chance."""
    seed, who = np.array(seeds)[:, None], np.arange(learners)
    chosen = max(1, round(participation * learners))
    order = uniform("participation", seed, round_, who).argsort(axis=1, kind="stable")
    participates = np.zeros((len(seeds), learners), dtype=bool)
    np.put_along_axis(participates, order[:, :chosen], True, axis=1)
    return Presence(participates, uniform("offline", seed, round_, who) >= offline)
