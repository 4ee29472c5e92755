"""Who works in a round and on which samples, decided before the round by hashing alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.randomness import uniform

Indices = NDArray[np.int64]
BEFORE, AFTER = -2, -1
"""In the place of a step's number, where something is drawn before local training or after it."""


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


def stacked_batches(
    seed: Tensor,
    round_: Tensor,
    learner: Tensor,
    size: Tensor,
    steps: Tensor,
    longest: int,
    most: int,
    batch: int,
    epochs: int,
) -> Tensor:
    """The same mini-batches for many learners at once, (steps, learners, batch), as positions among their samples.

    seed, learner, size, steps (in an epoch): one entry a learner. longest: the most samples one has; most: the most
    steps of a round one takes. Where a batch is partial or a learner has nothing left to do, what lies behind is not
    to be used.
    """
    column = torch.arange(longest, device=seed.device)
    orders = torch.stack(
        [_order(uniform("shuffle", seed[:, None], round_, e, learner[:, None], column), size) for e in range(epochs)]
    )  # (epochs, learners, longest)
    step = torch.arange(most, device=seed.device)[:, None, None]
    epoch = (step // steps[:, None]).clamp(max=epochs - 1)  # (steps, learners, 1)
    place = ((step % steps[:, None]) * batch + torch.arange(batch, device=seed.device)) % size[:, None]
    return orders[epoch, torch.arange(len(seed), device=seed.device)[:, None], place]


def _order(chance: Tensor, size: Tensor) -> Tensor:
    """A shuffle of each row's own samples; what is beyond them goes last."""
    beyond = torch.arange(chance.shape[1], device=chance.device) >= size[:, None]
    return chance.masked_fill(beyond, 2.0).argsort(dim=1, stable=True)


def widths(size: int, batch: int, epochs: int, *, even: bool, least: int) -> list[int]:
    """How many samples each batch of a round has: see `batches`."""
    steps = -(-size // batch)
    last = max(size - (steps - 1) * batch, least) if even else batch
    return ([batch] * (steps - 1) + [last]) * epochs


@dataclass(frozen=True)
class Presence:
    """Who trains and who can be reached in a round, (federations, learners) each."""

    participates: NDArray[np.bool_]
    online: NDArray[np.bool_]

    @property
    def exchanges(self) -> NDArray[np.bool_]:
        """Who both trains and can be reached."""
        return self.participates & self.online


@dataclass(frozen=True)
class ParticipationGroup:
    """Learners among whom those who take part in a round are drawn, and how large a share of them does."""

    learners: Indices
    share: float

    def chosen(self, there: int, host: bool) -> int:
        """How many of those who are there; one who takes part in any case comes on top."""
        return int(host) + max(1, round(self.share * (there - host)))


def presences(
    seeds: Sequence[int],
    round_: int,
    learners: int,
    participation: float,
    offline: float,
    host: int | None = None,
    crowds: Sequence[ParticipationGroup] = (),
    joins: Indices | None = None,
) -> Presence:
    """Draw a round's presence in every federation: a fixed number of participants, and each offline by chance.

    host: one who takes part in every round, beside those who are drawn among the others. crowds: learners with a share
    of their own, drawn among themselves; all others are one crowd more. joins: the round from which each is there.
    """
    seed, who = np.array(seeds)[:, None], np.arange(learners)
    chance = uniform("participation", seed, round_, who)
    if host is not None:
        chance[:, host] = -1.0  # before everybody
    there = np.ones(learners, dtype=bool) if joins is None else joins <= round_
    others = np.setdiff1d(who, np.concatenate([crowd.learners for crowd in crowds])) if crowds else who
    participates = np.zeros((len(seeds), learners), dtype=bool)
    for crowd in (ParticipationGroup(others, participation), *crowds):
        present = crowd.learners[there[crowd.learners]]
        first = chance[:, present].argsort(axis=1, kind="stable")[:, : crowd.chosen(len(present), host in present)]
        np.put_along_axis(participates, present[first], True, axis=1)
    return Presence(participates, uniform("offline", seed, round_, who) >= offline)
