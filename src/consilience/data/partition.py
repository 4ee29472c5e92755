"""Dealing the samples of a data set to learners: evenly, so that classes or sizes differ, or to whom they belong."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.config.parsing import Form, Number, Spelled, read
from consilience.errors import ConfigurationError

Indices = NDArray[np.int64]


def _alpha(advice: str) -> Form:
    return Form((Number("ALPHA", lambda alpha: alpha > 0, "a finite number above 0", advice),))


FORMS = {
    "iid": Form(),
    "dirichlet": _alpha("try dirichlet(0.1) for very different learners, dirichlet(100) for nearly equal ones"),
    "shards": Form((Number("K", lambda k: k >= 1 and k.is_integer(), "a whole number, 1 or more", "try shards(2)"),)),
    "quantity": _alpha("try quantity(0.5) for very different sizes, quantity(100) for nearly equal ones"),
    "shares": Form((Number("A", lambda share: share >= 0, "a finite number, 0 or more"),), more=True),
    "owners": Form(),
}
"""How each partition is written."""

SCHEMES = tuple(form.spelled(word) for word, form in FORMS.items())

SKEWED = frozenset({"dirichlet", "shards", "owners"})
"""Partitions after which learners have different shares of the classes; the others make only sizes differ."""


def partition(
    targets: NDArray[np.int64],
    learners: int,
    how: str,
    generator: np.random.Generator,
    *,
    minimum: int = 2,
    owners: Indices | None = None,
) -> list[Indices]:
    """The sorted indices of each learner's samples; every sample goes to exactly one learner, but for "owners".

    how: "iid" deals every class evenly, so the learners' sizes, and their counts of any class, differ by at most one.
    "dirichlet(ALPHA)" (or "dirichlet:ALPHA") draws for every class the learners' shares of it: the smaller ALPHA, the
    fewer classes a learner has. "shards(K)" sorts by class, cuts into learners x K runs of equal length and deals K of
    them to everybody. "quantity(ALPHA)" draws the learners' sizes, "shares(A, B, ...)" names them, one share for each
    learner; both leave everybody the same classes in the same shares, but for rounding. "owners" lets everybody be one
    of those that `owners`, (n,), names by number, in their order; where they are more than the learners, who comes in
    is drawn, and nobody has the samples of the others.

    Learners left with fewer than `minimum` samples then take some from the largest; where there are too few samples for
    that, everybody gets at least an equal share, rounded down. Shards and owners stay as they are.
    """
    spelled = scheme_of(how)
    _check(targets, learners, minimum)
    if spelled.word == "owners":
        return _owned(owners, learners, generator)
    return [np.sort(part) for part in _dealt(targets, learners, how, spelled, generator, minimum)]


def scheme_of(how: str) -> Spelled:
    """The word and numbers of a partition; a misspelled one is refused."""
    return read("partition", how, FORMS)


def class_counts(targets: NDArray[np.int64], parts: Sequence[Indices], classes: int) -> NDArray[np.int64]:
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


def _dealt(
    targets: NDArray[np.int64],
    learners: int,
    how: str,
    spelled: Spelled,
    generator: np.random.Generator,
    minimum: int,
) -> list[Indices]:
    word, numbers = spelled
    if word == "iid":
        return _iid(targets, learners, generator)
    if word == "dirichlet":
        return _top_up(_dirichlet(targets, learners, numbers[0], generator), minimum, generator)
    if word == "shards":
        return _shards(targets, learners, int(numbers[0]), how, generator)
    drawn = word == "quantity"
    shares = dirichlet_shares(numbers[0], learners, generator) if drawn else _stated(how, numbers, learners)
    return _stratified(targets, _sizes(shares, len(targets), minimum), generator)


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


def _shards(
    targets: NDArray[np.int64], learners: int, each: int, how: str, generator: np.random.Generator
) -> list[Indices]:
    if learners * each > len(targets):
        raise ConfigurationError(
            f"partition {how!r}: {learners} learners x {each} shards need as many samples, and there are "
            f"{len(targets)}; take fewer shards, fewer learners or more samples"
        )
    order = np.concatenate(list(_shuffled_classes(targets, generator)))  # (n,) sorted by class
    shards = np.array_split(order, learners * each)  # lengths differ by at most one
    hands = generator.permutation(learners * each).reshape(learners, each)  # (learners, K) of shards
    return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]


def _owned(owners: Indices | None, learners: int, generator: np.random.Generator) -> list[Indices]:
    if owners is None:
        raise ConfigurationError(
            "partition 'owners' is for data whose samples have owners, such as data set 'shakespeare' or "
            "Dataset.from_text, and these have none; take another partition"
        )
    there = np.unique(owners)  # cut data may have nothing left of some
    if learners > len(there):
        raise ConfigurationError(
            f"partition 'owners': {learners} learners, and the samples have {len(there)} owners; take {len(there)} "
            f"learners or fewer, or more samples where some owners have none left"
        )
    some = there if learners == len(there) else np.sort(generator.choice(there, learners, replace=False))
    return [np.flatnonzero(owners == owner) for owner in some]


def _stated(how: str, numbers: Sequence[float], learners: int) -> NDArray[np.float64]:
    """The shares as they were given, (learners,), scaled to sum to 1."""
    if len(numbers) != learners:
        raise ConfigurationError(
            f"partition {how!r}: {len(numbers)} shares for {learners} learners; give one share for each learner"
        )
    shares = np.array(numbers)  # (learners,)
    if shares.max() == 0:
        raise ConfigurationError(f"partition {how!r}: all shares are 0; at least one must be above 0")
    shares /= shares.max()  # first, since the sum of huge shares could overflow
    scaled: NDArray[np.float64] = shares / shares.sum()
    return scaled


def _sizes(shares: NDArray[np.float64], samples: int, minimum: int) -> Indices:
    """How many samples each learner gets, (learners,), nobody less than the minimum where there are enough."""
    # Rounding the running sum, not the shares: so the sizes always add up to the samples.
    cuts = np.rint(np.cumsum(shares)[:-1] * samples).astype(np.int64)  # (learners - 1,)
    sizes = np.diff(cuts, prepend=0, append=samples)  # (learners,)
    floor = min(minimum, samples // len(sizes))
    # The largest has more than the floor while anybody has less, so this ends after at most floor * learners moves.
    for taker in np.flatnonzero(sizes < floor):
        for _ in range(floor - sizes[taker]):
            sizes[np.argmax(sizes)] -= 1
            sizes[taker] += 1
    return sizes


def _stratified(targets: NDArray[np.int64], sizes: Indices, generator: np.random.Generator) -> list[Indices]:
    """Deal the samples class by class, each learner's turns spread evenly over all of them."""
    order = np.concatenate(list(_shuffled_classes(targets, generator)))  # (n,) sorted by class
    names = generator.permutation(len(sizes))  # (learners,) so that nobody always comes first where sizes are equal
    owner = names[turns(sizes[names])]  # (n,)
    return np.split(order[np.argsort(owner, kind="stable")], np.cumsum(sizes)[:-1])


def turns(sizes: Indices) -> Indices:
    """Whose turn it is, (n,): learner i comes `sizes[i]` times, as evenly as can be.

    After any t turns learner i has come t * sizes[i] / n times, rounded up or down. So its k-th turn has a first and a
    last possible place; an order that keeps all of them always exists (Tijdeman 1980), and taking the most urgent
    turn among those allowed finds one.
    """
    n = int(sizes.sum())
    waiting = [(1, learner, 0) for learner, size in enumerate(sizes.tolist()) if size]  # (first place, learner, turn)
    urgent: list[tuple[int, int, int]] = []  # (last place, learner, turn)
    order = np.empty(n, dtype=np.int64)  # (n,)
    for place in range(1, n + 1):
        # Every learner waits for one turn at a time, so this loop moves at most one each and n in all.
        while waiting and waiting[0][0] <= place:
            _, learner, turn = heapq.heappop(waiting)
            heapq.heappush(urgent, (-(-(turn + 1) * n // int(sizes[learner])), learner, turn))
        _, learner, turn = heapq.heappop(urgent)
        order[place - 1] = learner
        if turn + 1 < sizes[learner]:
            heapq.heappush(waiting, ((turn + 1) * n // int(sizes[learner]) + 1, learner, turn + 1))
    return order
