"""Means over a learner's samples of a class: their members, and membership inference against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.membership import Membership, infer_membership
from consilience.leakage.examined_learner import FEATURES, ExaminedSamples, evenly_spaced
from consilience.randomness import seed_of, uniform

SAMPLES_PER_MEAN = (1, 2, 5, 10, 50, None)
"""The numbers of samples in a mean; None: all of a class."""
_MIN_SHARED = 2  # samples of a class whose mean is uploaded
_MAX_GROUPS = 10  # means of each class: more than one, since means of few samples vary
_NON_MEMBERS = 200  # test samples that members are compared with, at most, or as many as there are members
_SHUFFLES = 20


@dataclass(frozen=True, eq=False)
class SampleGroup:
    """Samples of one class that are averaged: their indices among a learner's own."""

    label: int
    indices: np.ndarray


def group_samples(
    targets: np.ndarray, samples_per_mean: int | None, seed: int, who: int, shared: np.ndarray | None = None
) -> list[SampleGroup]:
    """Disjoint groups of this many samples, up to ten per class, or one group of all; a class with fewer has none.

    A class is shuffled once, so that a small group is part of the first larger one. shared: which samples may be in a
    group, (samples,).
    """
    chance = uniform("leakage", seed, who, np.arange(len(targets)))
    found = []
    for label in np.unique(targets).tolist():
        there = np.flatnonzero(targets == label if shared is None else (targets == label) & shared)
        shuffled = there[np.argsort(chance[there], kind="stable")]
        size = len(shuffled) if samples_per_mean is None else samples_per_mean
        if len(shuffled) < (_MIN_SHARED if samples_per_mean is None else size):
            continue
        starts = range(0, len(shuffled) - size + 1, size)[:_MAX_GROUPS]
        found += [SampleGroup(label, shuffled[start : start + size]) for start in starts]
    return found


def mean_features(own: ExaminedSamples, groups: Sequence[SampleGroup]) -> Tensor:
    """The mean of each group's features, (groups, width)."""
    features = own.outputs[FEATURES].flatten(1)
    return torch.stack([features[torch.from_numpy(group.indices).to(features.device)].mean(0) for group in groups])


def groups_with_tests(groups: Sequence[SampleGroup], tests: ExaminedSamples) -> list[SampleGroup]:
    """The groups whose class has test samples, which membership inference needs as non-members."""
    there = set(tests.targets.tolist())
    return [group for group in groups if group.label in there]


def membership_leakage(
    own: ExaminedSamples, tests: ExaminedSamples, groups: Sequence[SampleGroup], seed: int, who: int
) -> tuple[Membership, float] | None:
    """How well samples in the means are distinguished from test samples of the class, and the advantage of chance.

    Each class is measured by itself, so that membership and not the class is inferred; the numbers are averaged over
    classes, weighted by the samples in means. None if no class of a mean has test samples.
    """
    some = groups_with_tests(groups, tests)
    found, inside = [], []
    for label in sorted({group.label for group in some}):
        near, far = _distances(own, tests, label, [group for group in some if group.label == label])
        inferred, chance = (
            infer_membership(near, far),
            _chance_advantage(near, far, seed_of("leakage chance", seed, who, label)),
        )
        found.append((inferred.auc, inferred.advantage, inferred.threshold, chance))
        inside.append(len(near))
    if not found:
        return None
    auc, advantage, threshold, chance_advantage = np.average(
        found, axis=0, weights=inside
    ).tolist()  # (classes, 4) -> (4,)
    return Membership(auc, advantage, threshold), chance_advantage


def _distances(
    own: ExaminedSamples, tests: ExaminedSamples, label: int, groups: Sequence[SampleGroup]
) -> tuple[np.ndarray, np.ndarray]:
    """Distances of members and of test samples to the means of a class, in units of the test samples' mean distance."""
    own_features, test_features = (side.outputs[FEATURES].flatten(1) for side in (own, tests))
    outside = test_features[torch.from_numpy(np.flatnonzero(tests.targets == label)).to(test_features.device)]
    others = outside.double().numpy(force=True)  # (test samples of the class, width)
    near, far = [], []
    for group in groups:
        inside = own_features[torch.from_numpy(group.indices).to(own_features.device)].double().numpy(force=True)
        center = inside.mean(0)
        to_inside, to_others = (np.linalg.norm(side - center, axis=1) for side in (inside, others))
        unit = to_others.mean() or 1.0
        near.append(to_inside / unit)
        far.append(to_others[evenly_spaced(len(others), max(_NON_MEMBERS, len(inside)))] / unit)
    return np.concatenate(near), np.concatenate(far)


def _chance_advantage(inside: np.ndarray, outside: np.ndarray, seed: int) -> float:
    """The mean advantage over shuffled memberships: above 0, since thresholds are chosen with the memberships known."""
    generator, distances = np.random.default_rng(seed), np.concatenate([inside, outside])
    shuffled = (generator.permutation(distances) for _ in range(_SHUFFLES))
    return float(np.mean([infer_membership(s[: len(inside)], s[len(inside) :]).advantage for s in shuffled]))
