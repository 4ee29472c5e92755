"""In which ways learners' data differ: what a partition and a shift promise, and what was dealt.

Bayes' rule leaves nine ways in which a learner's distribution may differ from the federation's (Berdoz 2022, Table 2
and Figure 7): by p(x), p(y|x), p(y) and p(x|y). Where p(y|x) differs, learners mean different things by the same label,
and a common model cannot serve them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.data.partition import SKEWED, scheme_of
from consilience.data.shifts import FeatureShift, shifts_of
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
    """p(x): they have other inputs."""
    labels_given_inputs: bool
    """p(y|x): they would call the same input something else."""
    labels: bool
    """p(y): they have other shares of the classes."""
    inputs_given_labels: bool
    """p(x|y): what they call by one name looks different."""

    @property
    def figure(self) -> str:
        """Which of the nine cases it is, "7a" to "7i", or "" where nothing differs."""
        return _FIGURES.get(self._flags, "")

    def in_words(self) -> str:
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
    """What a partition and a shift make differ between learners.

    With fewer than three classes some of it comes to nothing: tell how many there are where it may matter.
    """
    word = scheme_of(partition).word
    skew, owned = word in SKEWED and classes != 1, word == "owners"
    shifts = {word: each for word, each in shifts_of(shift).items() if not each.idle}
    # Different owners have different things to show and to say, under the same name too.
    moved = owned or any(isinstance(each, FeatureShift) for each in shifts.values())
    words = set() if classes == 1 else set(shifts)
    # Once the labels of a pair are drawn by chance, they say nothing of the input, and no renaming can change that.
    tossed = bool(words & {"ambiguous", "prefer"})
    noise = "label-noise" in words and not (tossed and classes == 2)
    renamed = not tossed and bool(words & {"swap", "relabel"})
    # Samples are dealt by their labels: when these are ambiguous, only the shares of whole pairs are dealt unevenly.
    uneven = skew and not ("ambiguous" in words and classes == 2)
    return HeterogeneityCase(
        inputs=uneven or moved,
        labels_given_inputs=noise or renamed or bool(words & {"relabel", "prefer"}) or (skew and "ambiguous" in words),
        labels=skew or bool(words & {"relabel", "prefer"}),
        inputs_given_labels=moved or noise or renamed or (skew and "prefer" in words and "ambiguous" not in words),
    )


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# --- what was dealt


class Dealt(Protocol):
    """What is measured: samples with their labels, and who has them."""

    @property
    def truth(self) -> Indices:
        """The class each sample came with, (n,)."""

    @property
    def targets(self) -> Indices:
        """The label it was given, (n,)."""

    @property
    def parts(self) -> list[Indices]:
        """The samples of each learner."""

    @property
    def strength(self) -> NDArray[np.float64]:
        """How strongly each learner's inputs are shifted, (learners,)."""


class Gaps(NamedTuple):
    """Four distances between learners and their federation, each from 0 to 1."""

    inputs: float
    labels_given_inputs: float
    labels: float
    inputs_given_labels: float


class Distances(NamedTuple):
    """How far learners are from their federation, and how far chance alone would put them."""

    inputs: float
    labels_given_inputs: float
    labels: float
    inputs_given_labels: float
    noise: Gaps
    """The same for the same samples in hands of the same sizes, dealt blindly."""


def measure(deal: Dealt, *, draws: int | None = None, seed: int = 0, kinds: Indices | None = None) -> Distances:
    """The mean over learners of the total variation between their distributions and the pooled ones.

    A sample's original class, or its kind where `kinds`, (n,), are given, and the strength of its feature shift stand
    for x. Samples that nobody has do not count. Learners are finite samples, so no distance is quite 0: `noise` says
    what to compare with, a mean over so many blind draws; fewer where learners are many, for each then counts for less.
    """
    draws = draws or max(1, min(8, 8000 // len(deal.parts)))
    sizes = [len(part) for part in deal.parts]
    held = np.concatenate(deal.parts)  # (m,) samples that somebody has, learner by learner
    truth, targets = deal.truth[held], deal.targets[held]  # (m,), (m,)
    levels = np.unique(deal.strength, return_inverse=True)[1]  # (learners,)
    x = (truth if kinds is None else kinds[held]) * len(sizes) + np.repeat(levels, sizes)  # (m,)
    nothing = np.zeros_like(x)
    tables = (  # in the order of Gaps
        _table(nothing, x),
        _table(truth, targets),
        _table(nothing, targets),
        _table(targets, x),
    )
    order, cuts = np.arange(len(held)), np.cumsum(sizes)[:-1]
    generator = np.random.default_rng(seed_of("discrepancy", seed))
    hands = [np.split(generator.permutation(order), cuts) for _ in range(draws)]
    blind = [[_gap(table, parts) for table in tables] for parts in hands]
    found = Gaps(*(_gap(table, np.split(order, cuts)) for table in tables))
    return Distances(*found, noise=Gaps(*np.mean(blind, axis=0).tolist()))


class _Table(NamedTuple):
    """Samples in cells (given, value), and how many there are of each in all."""

    group: Indices  # (n,) what is given
    cell: Indices  # (n,) what is given, and the value
    in_group: Indices  # (groups,)
    in_cell: Indices  # (cells,)


def _table(given: Indices, value: Indices) -> _Table:
    group = np.unique(given, return_inverse=True)[1]  # (n,)
    cell = np.unique(group * (value.max() + 1) + value, return_inverse=True)[1]  # (n,)
    return _Table(group, cell, np.bincount(group), np.bincount(cell))


def _gap(table: _Table, parts: Sequence[Indices]) -> float:
    """The mean over learners of the distance of p_u(value|given) from p(value|given), over what the learner is given.

    The total variation of p_u from p is the sum of p_u - p where that is positive, so that only cells a learner has
    samples in need be looked at, however many there are.
    """
    gaps = []
    for part in parts:
        cells, first, counts = np.unique(table.cell[part], return_index=True, return_counts=True)
        groups = table.group[part]  # (n_u,)
        of = groups[first]  # (cells it has,) the group of each
        expected = np.bincount(groups)[of] * table.in_cell[cells] / table.in_group[of]  # (cells it has,)
        gaps.append(np.maximum(counts - expected, 0).sum() / len(part))
    return float(np.mean(gaps))
