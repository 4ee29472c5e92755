"""Means over some of a learner's samples of a class: what they are formed of, and who can be told to be in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.membership import Membership, membership
from consilience.leakage.subject import FEATURES, Side, evenly
from consilience.randomness import seed_of, uniform

N_AVG = (1, 2, 5, 10, 50, None)
"""How many samples a mean is of; None: all of a class."""
_LEAST = 2  # samples of a class whose mean is shared
_GROUPS = 10  # means of each class, so that few samples in each do not leave it all to chance
_OTHERS = 200  # test samples that those in a mean are told from, at most, or as many as are in it
_SHUFFLES = 20


@dataclass(frozen=True, eq=False)
class Group:
    """Samples of one class that are averaged, by their places among a learner's own."""

    label: int
    places: np.ndarray


def groups_of(
    targets: np.ndarray, n_avg: int | None, seed: int, who: int, shared: np.ndarray | None = None
) -> list[Group]:
    """Disjoint groups of n_avg samples, up to ten of each class, or one of all; a class with fewer has none.

    A class is shuffled once: what a small group holds is in the first of the larger ones. shared: which samples may be
    in a group at all, (samples,).
    """
    chance = uniform("leakage", seed, who, np.arange(len(targets)))
    found = []
    for label in np.unique(targets).tolist():
        there = np.flatnonzero(targets == label if shared is None else (targets == label) & shared)
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


def measured(groups: Sequence[Group], tests: Side) -> list[Group]:
    """The groups whose class has test samples: who is in the mean of another can be told from nobody."""
    there = set(tests.targets.tolist())
    return [group for group in groups if group.label in there]


def told_apart(own: Side, tests: Side, groups: Sequence[Group], seed: int, who: int) -> tuple[Membership, float] | None:
    """How well samples in the means are told from test samples of the class, and the advantage by chance alone.

    Each class is measured by itself, so that what is told is who was in a mean and not the class, and all are averaged,
    weighted by the samples inside. None where no class of a mean has test samples.
    """
    some = measured(groups, tests)
    found, inside = [], []
    for label in sorted({group.label for group in some}):
        near, far = _distances(own, tests, label, [group for group in some if group.label == label])
        told, chance = membership(near, far), _by_chance(near, far, seed_of("leakage chance", seed, who, label))
        found.append((told.auc, told.advantage, told.threshold, chance))
        inside.append(len(near))
    if not found:
        return None
    auc, advantage, threshold, by_chance = np.average(found, axis=0, weights=inside).tolist()  # (classes, 4) -> (4,)
    return Membership(auc, advantage, threshold), by_chance


def _distances(own: Side, tests: Side, label: int, groups: Sequence[Group]) -> tuple[np.ndarray, np.ndarray]:
    """Of those in the means of one class, and of test samples of it; a mean's are divided by that of test samples."""
    mine, theirs = (side.outputs[FEATURES].flatten(1) for side in (own, tests))
    outside = theirs[torch.from_numpy(np.flatnonzero(tests.targets == label)).to(theirs.device)]
    others = outside.double().numpy(force=True)  # (test samples of the class, width)
    near, far = [], []
    for group in groups:
        inside = mine[torch.from_numpy(group.places).to(mine.device)].double().numpy(force=True)
        center = inside.mean(0)
        to_inside, to_others = (np.linalg.norm(side - center, axis=1) for side in (inside, others))
        unit = to_others.mean() or 1.0
        near.append(to_inside / unit)
        far.append(to_others[evenly(len(others), max(_OTHERS, len(inside)))] / unit)
    return np.concatenate(near), np.concatenate(far)


def _by_chance(inside: np.ndarray, outside: np.ndarray, seed: int) -> float:
    """The mean advantage over shuffles of who was inside: thresholds are chosen afterward, so it is above 0."""
    generator, everybody = np.random.default_rng(seed), np.concatenate([inside, outside])
    shuffled = (generator.permutation(everybody) for _ in range(_SHUFFLES))
    return float(np.mean([membership(s[: len(inside)], s[len(inside) :]).advantage for s in shuffled]))
