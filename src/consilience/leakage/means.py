"""Means over some of a learner's samples of a class: what they are formed of, and who can be told to be in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.membership import Membership, membership
from consilience.leakage.subject import FEATURES, Side
from consilience.randomness import seed_of, uniform

N_AVG = (1, 2, 5, 10, 50, None)
"""How many samples a mean is of; None: all of a class."""
_LEAST = 2  # samples of a class whose mean is shared
_GROUPS = 10  # means of each class, so that few samples in each do not leave it all to chance
_OTHERS = 200  # test samples that those in the largest mean are told from, or as many as are in it
_SHUFFLES = 20


@dataclass(frozen=True, eq=False)
class Group:
    """Samples of one class that are averaged, by their places among a learner's own."""

    label: int
    places: np.ndarray


def groups_of(targets: np.ndarray, n_avg: int | None, seed: int, who: int) -> list[Group]:
    """Disjoint groups of n_avg samples, up to ten of each class, or one of all; a class with fewer has none.

    A class is shuffled once: what a small group holds is in the first of the larger ones.
    """
    chance = uniform("leakage", seed, who, np.arange(len(targets)))
    found = []
    for label in np.unique(targets).tolist():
        there = np.flatnonzero(targets == label)
        shuffled = there[np.argsort(chance[there], kind="stable")]
        size = len(shuffled) if n_avg is None else n_avg
        if len(shuffled) < (_LEAST if n_avg is None else size):
            continue
        starts = range(0, len(shuffled) - size + 1, size)[:_GROUPS]
        found += [Group(label, shuffled[start : start + size]) for start in starts]
    return found


def mean_features(own: Side, groups: Sequence[Group]) -> Tensor:
    """The mean of each group's features, (groups, width)."""
    features = own.outputs[FEATURES].flatten(1)
    return torch.stack([features[torch.from_numpy(group.places).to(features.device)].mean(0) for group in groups])


def told_apart(own: Side, tests: Side, groups: Sequence[Group], seed: int, who: int) -> tuple[Membership, float] | None:
    """How well samples in the means are told from test samples of the class, and the advantage by chance alone.

    None where no class of a mean has test samples. Distances to a mean are divided by that of the test samples, and
    classes have the same share on both sides, so that what is told is who was in it and not the class.
    """
    apart = list(_distances(own, tests, groups))
    most = max(1.0, _OTHERS / max((len(inside) for inside, _ in apart), default=1))
    share = min([most, *(len(outside) / len(inside) for inside, outside in apart)])  # of test samples for each inside
    others = [int(share * len(inside) + 1e-9) for inside, _ in apart]
    pairs = [(inside, outside[_some(len(outside), n)]) for (inside, outside), n in zip(apart, others, strict=True) if n]
    if not pairs:
        return None
    inside, outside = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return membership(inside, outside), _by_chance(inside, outside, seed_of("leakage chance", seed, who))


def _distances(own: Side, tests: Side, groups: Sequence[Group]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of those in each mean, and of test samples of its class, where there are any."""
    mine, theirs = (side.outputs[FEATURES].flatten(1).double().numpy(force=True) for side in (own, tests))
    for group in groups:
        inside, outside = mine[group.places], theirs[tests.targets == group.label]
        if len(outside):
            centre = inside.mean(0)
            near, far = (np.linalg.norm(side - centre, axis=1) for side in (inside, outside))
            unit = far.mean() or 1.0
            yield near / unit, far / unit


def _some(count: int, most: int) -> np.ndarray:
    return np.linspace(0, count - 1, most).round().astype(int)


def _by_chance(inside: np.ndarray, outside: np.ndarray, seed: int) -> float:
    """The mean advantage over shuffles of who was inside: thresholds are chosen afterwards, so it is above 0."""
    generator, everybody = np.random.default_rng(seed), np.concatenate([inside, outside])
    shuffled = (generator.permutation(everybody) for _ in range(_SHUFFLES))
    return float(np.mean([membership(s[: len(inside)], s[len(inside) :]).advantage for s in shuffled]))
