"""In which ways learners' data differ: what a partition and a shift make differ, and how far the data do.

Bayes' rule leaves nine ways in which a learner's distribution may differ from the federation's (Berdoz 2022, Table 2
and Figure 7): by p(x), p(y|x), p(y) and p(x|y). Where p(y|x) differs, a label means different things to different
learners, and a common model cannot be right for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.data.partition import SKEWED, parse_partition
from consilience.data.shifts import FeatureShift, parse_shifts
from consilience.randomness import seed_of

Indices = NDArray[np.int64]

CASES: Mapping[str, tuple[str, str]] = {
    "7a": ("dirichlet(0.3)", "rotate(60)+swap(0.8)"),
    "7b": ("iid", "rotate(60)+swap(0.8)"),
    "7c": ("iid", "relabel(0.8)"),
    "7d": ("iid", "swap(0.8)"),
    "7e": ("dirichlet(0.3)", "none"),
    "7f": ("iid", "prefer(0.9)"),
    "7g": ("iid", "rotate(60)"),
    "7h": ("dirichlet(0.3)", "ambiguous"),
    "7i": ("dirichlet(0.3)", "rotate(60)"),
}
"""A partition and a shift for each of the nine cases."""

SYMBOLS = ("p(x)", "p(y|x)", "p(y)", "p(x|y)")
_FIGURES = {
    (True, True, True, True): "7a",
    (True, True, False, True): "7b",
    (False, True, True, True): "7c",
    (False, True, False, True): "7d",
    (True, False, True, False): "7e",
    (False, True, True, False): "7f",
    (True, False, False, True): "7g",
    (True, True, True, False): "7h",
    (True, False, True, True): "7i",
}


@dataclass(frozen=True)
class HeterogeneityCase:
    """Which of a learner's distributions differ from the federation's."""

    inputs: bool
    """p(x): learners have different inputs."""
    labels_given_inputs: bool
    """p(y|x): learners give the same input different labels."""
    labels: bool
    """p(y): learners have different shares of the classes."""
    inputs_given_labels: bool
    """p(x|y): inputs with the same label look different."""

    @property
    def figure(self) -> str:
        """Which of the nine cases it is, "7a" to "7i", or "" where nothing differs."""
        return _FIGURES.get(self._flags, "")

    def describe(self) -> str:
        """The case as one sentence."""
        differ = [symbol for symbol, flag in zip(SYMBOLS, self._flags, strict=True) if flag]
        if not differ:
            return "learners' data come from one distribution"
        same = [symbol for symbol in SYMBOLS if symbol not in differ]
        return f"learners differ in {_listed(differ)}" + (f" but not in {_listed(same)}" if same else "")

    @property
    def _flags(self) -> tuple[bool, bool, bool, bool]:
        return self.inputs, self.labels_given_inputs, self.labels, self.inputs_given_labels


def heterogeneity_case(partition: str, shift: str, classes: int | None = None) -> HeterogeneityCase:
    """Which distributions a partition and a shift make differ between learners.

    classes: how many classes there are. With fewer than three some shifts have no effect; None: three or more.
    """
    word = parse_partition(partition).word
    skew, by_owner = word in SKEWED and classes != 1, word == "owners"
    shifts = {word: each for word, each in parse_shifts(shift).items() if not each.is_identity}
    # Different owners have different inputs, also for the same label.
    shifted = by_owner or any(isinstance(each, FeatureShift) for each in shifts.values())
    words = set() if classes == 1 else set(shifts)
    # Once the labels of a pair of classes are random, they do not depend on the input, and swapping them has no effect.
    random = bool(words & {"ambiguous", "prefer"})
    noise = "label-noise" in words and not (random and classes == 2)
    renamed = not random and bool(words & {"swap", "relabel"})
    # The partition goes by labels: when these are ambiguous, only the shares of whole pairs of classes differ.
    uneven = skew and not ("ambiguous" in words and classes == 2)
    return HeterogeneityCase(
        inputs=uneven or shifted,
        labels_given_inputs=noise or renamed or bool(words & {"relabel", "prefer"}) or (skew and "ambiguous" in words),
        labels=skew or bool(words & {"relabel", "prefer"}),
        inputs_given_labels=shifted or noise or renamed or (skew and "prefer" in words and "ambiguous" not in words),
    )


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# --- distances measured on the data


class AssignedSamples(Protocol):
    """Samples with their labels, and which learner has them."""

    @property
    def original_targets(self) -> Indices:
        """The class of each sample in the data set, (n,)."""

    @property
    def targets(self) -> Indices:
        """The label of each sample after the shifts, (n,)."""

    @property
    def parts(self) -> list[Indices]:
        """Indices of each learner's samples."""

    @property
    def strength(self) -> NDArray[np.float64]:
        """How strongly each learner's inputs are shifted, (learners,)."""


class DistributionGaps(NamedTuple):
    """Four distances between the learners' distributions and the federation's, each from 0 to 1."""

    inputs: float
    labels_given_inputs: float
    labels: float
    inputs_given_labels: float


class Distances(NamedTuple):
    """Distances between the learners' distributions and the federation's, and the distances expected by chance."""

    inputs: float
    labels_given_inputs: float
    labels: float
    inputs_given_labels: float
    noise: DistributionGaps
    """The same distances after the same samples are split at random into parts of the same sizes."""


def measure_heterogeneity(
    local: AssignedSamples, *, draws: int | None = None, seed: int = 0, kinds: Indices | None = None
) -> Distances:
    """The mean over learners of the total variation between their distributions and the pooled ones.

    A sample's original class, or its kind where `kinds`, (n,), is given, and the strength of its feature shift stand
    for x. Samples of no learner do not count. Learners have finite samples, so no distance is exactly 0: `noise` is the
    mean distance over `draws` random splits, to compare with. The default uses fewer draws for more learners.
    """
    draws = draws or max(1, min(8, 8000 // len(local.parts)))
    sizes = [len(part) for part in local.parts]
    held = np.concatenate(local.parts)  # (m,) samples of any learner, learner by learner
    original, targets = local.original_targets[held], local.targets[held]  # (m,), (m,)
    levels = np.unique(local.strength, return_inverse=True)[1]  # (learners,)
    x = (original if kinds is None else kinds[held]) * len(sizes) + np.repeat(levels, sizes)  # (m,)
    unconditional = np.zeros_like(x)
    tables = (  # in the order of DistributionGaps
        _table(unconditional, x),
        _table(original, targets),
        _table(unconditional, targets),
        _table(targets, x),
    )
    order, cuts = np.arange(len(held)), np.cumsum(sizes)[:-1]
    generator = np.random.default_rng(seed_of("discrepancy", seed))
    splits = [np.split(generator.permutation(order), cuts) for _ in range(draws)]
    by_chance = [[_gap(table, parts) for table in tables] for parts in splits]
    found = DistributionGaps(*(_gap(table, np.split(order, cuts)) for table in tables))
    return Distances(*found, noise=DistributionGaps(*np.mean(by_chance, axis=0).tolist()))


class _Table(NamedTuple):
    """Samples in cells (condition, value), with the size of each group and cell over all learners."""

    group: Indices  # (n,) by condition
    cell: Indices  # (n,) by condition and value
    in_group: Indices  # (groups,)
    in_cell: Indices  # (cells,)


def _table(condition: Indices, value: Indices) -> _Table:
    group = np.unique(condition, return_inverse=True)[1]  # (n,)
    cell = np.unique(group * (value.max() + 1) + value, return_inverse=True)[1]  # (n,)
    return _Table(group, cell, np.bincount(group), np.bincount(cell))


def _gap(table: _Table, parts: Sequence[Indices]) -> float:
    """The mean over learners of the distance of p_u(value|condition) from p(value|condition), by p_u(condition).

    The total variation of p_u from p is the sum of p_u - p where that is positive, so only cells in which the learner
    has samples count.
    """
    gaps = []
    for part in parts:
        cells, first, counts = np.unique(table.cell[part], return_index=True, return_counts=True)
        groups = table.group[part]  # (n_u,)
        of = groups[first]  # (cells it has,) the group of each
        expected = np.bincount(groups)[of] * table.in_cell[cells] / table.in_group[of]  # (cells it has,)
        gaps.append(np.maximum(counts - expected, 0).sum() / len(part))
    return float(np.mean(gaps))
