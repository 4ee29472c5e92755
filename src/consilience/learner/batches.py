"""The mini-batches of a round, planned before it by hashing alone: the same for a loop, a stack and a member.

Plans hold positions among a learner's own samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.randomness import uniform

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class LocalWork:
    """Local work in a round."""

    batch_size: int
    epochs: int
    smallest_batch: int  # no batch has fewer samples: BatchNorm needs two
    reset_optimizer: bool  # forget the optimizer's state before each round
    batch_order: int = 0  # which of many shuffles a seed has

    @property
    def shuffle(self) -> str:
        """The purpose for which the random numbers of shuffles are drawn."""
        return f"shuffle {self.batch_order}" if self.batch_order else "shuffle"


@dataclass(frozen=True)
class LearnerKey:
    """By whom random numbers are drawn: the federation's seed, and the learner's number in it."""

    seed: int
    number: int


@dataclass(frozen=True)
class StackedKeys:
    """The same for many learners at once, and how much work each has, (learners,) each."""

    seed: Tensor
    number: Tensor
    size: Tensor  # samples
    steps: Tensor  # in an epoch


def plan_batches(work: LocalWork, key: LearnerKey, round_: int, size: int, *, even: bool) -> list[Indices]:
    """The mini-batches of a learner with `size` samples in a round; every epoch has a new shuffle.

    even: all learners of the federation have equally many samples. Then the last partial batch stays partial, as
    published; otherwise it is filled up from the learner's own shuffle, so that all batches of a cohort have one shape.
    """
    planned, batch = [], work.batch_size
    for epoch in range(work.epochs):
        order = uniform(work.shuffle, key.seed, round_, epoch, key.number, np.arange(size)).argsort(kind="stable")
        steps = -(-size // batch)
        if even:
            short = size - (steps - 1) * batch
            order = np.concatenate([order, order[: max(work.smallest_batch - short, 0)]])
        else:
            order = np.resize(order, steps * batch)
        planned += [order[i * batch : (i + 1) * batch] for i in range(steps)]
    return planned


def plan_stacked_batches(work: LocalWork, keys: StackedKeys, round_: Tensor, longest: int, most: int) -> Tensor:
    """The same mini-batches for many learners at once, (steps, learners, batch).

    longest: the most samples a learner has. most: the most steps a learner takes in a round. Where a batch is partial
    or a learner has no steps left, the values behind it are not to be used.
    """
    seed, batch, device = keys.seed, work.batch_size, keys.seed.device
    column = torch.arange(longest, device=device)
    orders = torch.stack(
        [
            _shuffle(uniform(work.shuffle, seed[:, None], round_, epoch, keys.number[:, None], column), keys.size)
            for epoch in range(work.epochs)
        ]
    )  # (epochs, learners, longest)
    step = torch.arange(most, device=device)[:, None, None]
    epoch = (step // keys.steps[:, None]).clamp(max=work.epochs - 1)  # (steps, learners, 1)
    place = ((step % keys.steps[:, None]) * batch + torch.arange(batch, device=device)) % keys.size[:, None]
    return orders[epoch, torch.arange(len(seed), device=device)[:, None], place]


def _shuffle(chance: Tensor, size: Tensor) -> Tensor:
    """A shuffle of each row's own samples; positions beyond them go last."""
    beyond = torch.arange(chance.shape[1], device=chance.device) >= size[:, None]
    return chance.masked_fill(beyond, 2.0).argsort(dim=1, stable=True)


def batch_widths(work: LocalWork, size: int, *, even: bool) -> list[int]:
    """How many samples each batch of a round has: see `plan_batches`."""
    steps = -(-size // work.batch_size)
    last = max(size - (steps - 1) * work.batch_size, work.smallest_batch) if even else work.batch_size
    return ([work.batch_size] * (steps - 1) + [last]) * work.epochs
