"""Dealing the samples of a data set to learners: in equal class shares, or unevenly by a Dirichlet draw."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.errors import ConfigurationError, UnknownName

SCHEMES = ("iid", "dirichlet(ALPHA)")
Indices = NDArray[np.int64]


def partition(
    targets: NDArray[np.int64], learners: int, how: str, generator: np.random.Generator, *, minimum: int = 2
) -> list[Indices]:
    """The sorted indices of each learner's samples; every sample goes to exactly one learner.

    how: "iid" deals every class evenly, so the learners' sizes, and their counts of any class, differ by at most one.
    "dirichlet(ALPHA)" (or "dirichlet:ALPHA") draws for every class the learners' shares of it: the smaller ALPHA, the
    fewer classes a learner has. Learners left with fewer than `minimum` samples then take some from the largest; where
    there are too few samples for that, everybody gets at least an equal share, rounded down.
    """
    alpha = _alpha(how)
    _check(targets, learners, minimum)
    if alpha is None:
        parts = _iid(targets, learners, generator)
    else:
        parts = _top_up(_dirichlet(targets, learners, alpha, generator), minimum, generator)
    return [np.sort(part) for part in parts]


def class_table(targets: NDArray[np.int64], parts: Sequence[Indices], classes: int) -> NDArray[np.int64]:
    """How many samples of each class each learner has, (learners, classes)."""
    if targets.size and not 0 <= targets.min() <= targets.max() < classes:
        raise ConfigurationError(
            f"targets must lie in 0..{classes - 1} for {classes} classes, got {targets.min()}..{targets.max()}"
        )
    table = np.zeros((len(parts), classes), dtype=np.int64)
    for row, part in zip(table, parts, strict=True):
        row += np.bincount(targets[part], minlength=classes)
    return table


def dirichlet_shares(alpha: float, learners: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """One draw of the learners' shares, (learners,), that sums to 1 for any alpha, however small or large.

    A Dirichlet draw is gamma draws over their sum, but gamma(alpha) underflows to 0 for small alpha. So each is made as
    gamma(alpha + 1) * u ** (1 / alpha), in logarithms, whose common offset cancels in the sum.
    """
    alpha = min(alpha, 1e12)  # shares are equal to six digits by then, and gamma(1e308) could overflow
    gamma = np.log(generator.standard_gamma(alpha + 1, learners))  # (learners,)
    uniform = np.log(1 - generator.random(learners))  # (learners,) of numbers in (0, 1], so never log(0)
    with np.errstate(over="ignore"):  # -inf is right: that share is 0
        logs = gamma + (uniform - uniform.max()) / alpha  # (learners,) the largest `uniform` keeps one of them finite
    weights = np.exp(logs - logs.max())  # (learners,) the largest is 1
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _alpha(how: str) -> float | None:
    """The Dirichlet parameter that `how` names, or None for "iid"."""
    if how == "iid":
        return None
    match = re.fullmatch(r"dirichlet(?:\((.*)\)|:(.*))", how)
    if match is None:
        raise UnknownName("partition", how, SCHEMES)
    text = match[1] if match[1] is not None else match[2]
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise ConfigurationError(
            f"partition {how!r}: ALPHA must be a finite number above 0, got {text!r}; "
            f"try dirichlet(0.1) for very different learners, dirichlet(100) for nearly equal ones"
        )
    return alpha


def _check(targets: NDArray[np.int64], learners: int, minimum: int) -> None:
    if targets.ndim != 1 or not np.issubdtype(targets.dtype, np.integer):
        raise ConfigurationError(
            f"targets must be whole numbers of the shape (n,), got {targets.dtype} of the shape {targets.shape}"
        )
    if learners < 1:
        raise ConfigurationError(f"learners must be at least 1, got {learners}")
    if minimum < 1:
        raise ConfigurationError(f"minimum must be at least 1 sample a learner, got {minimum}")
    if learners > len(targets):
        raise ConfigurationError(
            f"{learners} learners cannot share {len(targets)} samples: each needs at least one; "
            f"take fewer learners or more samples"
        )


def _shuffled_classes(targets: NDArray[np.int64], generator: np.random.Generator) -> Iterator[Indices]:
    """The shuffled sample indices of one class after the other."""
    for label in np.unique(targets):
        yield generator.permutation(np.flatnonzero(targets == label).astype(np.int64))


def _iid(targets: NDArray[np.int64], learners: int, generator: np.random.Generator) -> list[Indices]:
    # Dealing goes on from class to class, so whoever is owed a sample at the end of one comes first in the next.
    order = np.concatenate(list(_shuffled_classes(targets, generator)))  # (n,)
    return [order[learner::learners] for learner in range(learners)]


def _dirichlet(
    targets: NDArray[np.int64], learners: int, alpha: float, generator: np.random.Generator
) -> list[Indices]:
    pieces: list[list[Indices]] = [[] for _ in range(learners)]
    for members in _shuffled_classes(targets, generator):
        shares = dirichlet_shares(alpha, learners, generator)  # (learners,)
        # Rounding the running sum, not the shares: so the pieces always add up to the class.
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)  # (learners - 1,)
        for mine, piece in zip(pieces, np.split(members, cuts), strict=True):
            mine.append(piece)
    return [np.concatenate(mine) for mine in pieces]


def _top_up(parts: list[Indices], minimum: int, generator: np.random.Generator) -> list[Indices]:
    """Move single samples from the largest learner to those below the minimum, the first of them first.

    Somebody always has more than the floor while anybody has less, so no giver falls short and the loop ends after at
    most floor * learners moves.
    """
    floor = min(minimum, sum(map(len, parts)) // len(parts))
    piles = [generator.permutation(part).tolist() for part in parts]  # shuffled, so that any class may be given away
    sizes = np.array([len(pile) for pile in piles])  # (learners,)
    for taker in np.flatnonzero(sizes < floor):
        while sizes[taker] < floor:
            giver = int(np.argmax(sizes))
            piles[taker].append(piles[giver].pop())
            sizes[giver] -= 1
            sizes[taker] += 1
    return [np.array(pile, dtype=np.int64) for pile in piles]
