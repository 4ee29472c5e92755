"""Splitting the samples of a data set among learners: evenly, with skewed classes or sizes, or by owner."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.config.parsing import Form, Number, ParsedSetting, parse_setting
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
"""The spelling of each partition."""

SCHEMES = tuple(form.usage(word) for word, form in FORMS.items())

SKEWED = frozenset({"dirichlet", "shards", "owners"})
"""Partitions after which learners have different shares of the classes; the others make only sizes differ."""


def partition_samples(
    targets: NDArray[np.int64],
    learners: int,
    how: str,
    generator: np.random.Generator,
    *,
    minimum: int = 2,
    owners: Indices | None = None,
    owner_names: Sequence[str] = (),
) -> list[Indices]:
    """The sorted indices of each learner's samples; every sample goes to exactly one learner, except with "owners".

    how: "iid" splits every class evenly, so the learners' sizes, and their counts of any class, differ by at most one.
    "dirichlet(ALPHA)" (or "dirichlet:ALPHA") draws the learners' shares of every class: the smaller ALPHA, the fewer
    classes a learner has. "shards(K)" sorts by class, cuts into learners x K shards of equal length and gives K of them
    to each learner. "quantity(ALPHA)" draws the learners' sizes, "shares(A, B, ...)" states them, one share per
    learner; both give all learners the same class shares, up to rounding. "owners" gives each learner the samples of
    one owner, by `owners`, (n,), in the order of their numbers; where there are more owners than learners, some are
    drawn, and the samples of the others are not used.

    Learners with fewer than `minimum` samples then get some from the largest; where there are too few samples for that,
    every learner gets at least an equal share, rounded down. Shards and owners stay as they are.
    """
    parsed = parse_partition(how)
    _check(targets, learners, minimum)
    if parsed.word == "owners":
        parts = _by_owner(owners, learners, generator)
        _refuse_small_owners(parts, owners, owner_names, minimum)
        return parts
    return [np.sort(part) for part in _split(targets, learners, how, parsed, generator, minimum)]


def parse_partition(how: str) -> ParsedSetting:
    """The word and numbers of a partition; a misspelled one is refused."""
    return parse_setting("partition", how, FORMS)


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


def _split(
    targets: NDArray[np.int64],
    learners: int,
    how: str,
    parsed: ParsedSetting,
    generator: np.random.Generator,
    minimum: int,
) -> list[Indices]:
    word, numbers = parsed
    if word == "iid":
        return _iid(targets, learners, generator)
    if word == "dirichlet":
        return _top_up(_dirichlet(targets, learners, numbers[0], generator), minimum, generator)
    if word == "shards":
        return _shards(targets, learners, int(numbers[0]), how, generator)
    drawn = word == "quantity"
    shares = dirichlet_shares(numbers[0], learners, generator) if drawn else _stated_shares(how, numbers, learners)
    return _stratified(targets, _sizes(shares, len(targets), minimum), generator)


def _check(targets: NDArray[np.int64], learners: int, minimum: int) -> None:
    if targets.ndim != 1 or not np.issubdtype(targets.dtype, np.integer):
        raise ConfigurationError(
            f"targets must be whole numbers of the shape (n,), got {targets.dtype} of the shape {targets.shape}"
        )
    if learners < 1:
        raise ConfigurationError(f"learners must be at least 1, got {learners}")
    if minimum < 1:
        raise ConfigurationError(f"minimum must be at least 1 sample per learner, got {minimum}")
    if learners > len(targets):
        raise ConfigurationError(
            f"{learners} learners cannot share {len(targets)} samples: each needs at least one; "
            f"use fewer learners or more samples"
        )


def _shuffled_classes(targets: NDArray[np.int64], generator: np.random.Generator) -> Iterator[Indices]:
    """The shuffled sample indices of one class after the other."""
    for label in np.unique(targets):
        yield generator.permutation(np.flatnonzero(targets == label).astype(np.int64))


def _iid(targets: NDArray[np.int64], learners: int, generator: np.random.Generator) -> list[Indices]:
    # Turns continue from class to class: the learner after the last one of a class gets the first sample of the next.
    order = np.concatenate(list(_shuffled_classes(targets, generator)))  # (n,)
    return [order[learner::learners] for learner in range(learners)]


def _dirichlet(
    targets: NDArray[np.int64], learners: int, alpha: float, generator: np.random.Generator
) -> list[Indices]:
    pieces: list[list[Indices]] = [[] for _ in range(learners)]
    for members in _shuffled_classes(targets, generator):
        shares = dirichlet_shares(alpha, learners, generator)  # (learners,)
        # Rounding the running sum, not the shares: so the pieces add up to the class.
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)  # (learners - 1,)
        for mine, piece in zip(pieces, np.split(members, cuts), strict=True):
            mine.append(piece)
    return [np.concatenate(mine) for mine in pieces]


def _top_up(parts: list[Indices], minimum: int, generator: np.random.Generator) -> list[Indices]:
    """Move single samples from the largest learner to those below the minimum, in order.

    While any learner has less than the floor, another has more, so the loop ends after at most floor * learners moves.
    """
    floor = min(minimum, sum(map(len, parts)) // len(parts))
    # Shuffled, so that samples of any class may move.
    samples_of = [generator.permutation(part).tolist() for part in parts]
    sizes = np.array([len(mine) for mine in samples_of])  # (learners,)
    for receiver in np.flatnonzero(sizes < floor):
        while sizes[receiver] < floor:
            largest = int(np.argmax(sizes))
            samples_of[receiver].append(samples_of[largest].pop())
            sizes[largest] -= 1
            sizes[receiver] += 1
    return [np.array(mine, dtype=np.int64) for mine in samples_of]


def _shards(
    targets: NDArray[np.int64], learners: int, each: int, how: str, generator: np.random.Generator
) -> list[Indices]:
    if learners * each > len(targets):
        raise ConfigurationError(
            f"partition {how!r}: {learners} learners x {each} shards need as many samples, and there are "
            f"{len(targets)}; use fewer shards, fewer learners or more samples"
        )
    order = np.concatenate(list(_shuffled_classes(targets, generator)))  # (n,) sorted by class
    shards = np.array_split(order, learners * each)  # lengths differ by at most one
    chosen = generator.permutation(learners * each).reshape(learners, each)  # (learners, K) of shards
    return [np.concatenate([shards[shard] for shard in mine]) for mine in chosen]


def _by_owner(owners: Indices | None, learners: int, generator: np.random.Generator) -> list[Indices]:
    if owners is None:
        raise ConfigurationError(
            "partition 'owners' is for data whose samples have owners, and these have none; name the column of a table "
            "that holds them with --owners COLUMN, give owners to Dataset.from_arrays, or use another partition"
        )
    present = np.unique(owners)  # where only the first samples are used, some owners may have none left
    if learners > len(present):
        raise ConfigurationError(
            f"partition 'owners': {learners} learners, and the samples have {len(present)} owners; use {len(present)} "
            f"learners or fewer, or more samples where some owners have none left"
        )
    chosen = present if learners == len(present) else np.sort(generator.choice(present, learners, replace=False))
    return [np.flatnonzero(owners == owner) for owner in chosen]


def _refuse_small_owners(parts: Sequence[Indices], owners: Indices | None, names: Sequence[str], minimum: int) -> None:
    """Refuse an owner with fewer samples than a learner can train on."""
    for part in parts:
        if owners is not None and len(part) < minimum:
            owner = int(owners[part[0]])
            raise ConfigurationError(
                f"partition 'owners': owner {repr(names[owner]) if names else owner} has {len(part)} training "
                f"sample, and a learner needs {minimum} or more; remove that owner's samples, give them to another "
                f"owner, or use more"
            )


def _stated_shares(how: str, numbers: Sequence[float], learners: int) -> NDArray[np.float64]:
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
    """How many samples each learner gets, (learners,), none below the minimum where there are enough."""
    # Rounding the running sum, not the shares: so the sizes add up to the samples.
    cuts = np.rint(np.cumsum(shares)[:-1] * samples).astype(np.int64)  # (learners - 1,)
    sizes = np.diff(cuts, prepend=0, append=samples)  # (learners,)
    floor = min(minimum, samples // len(sizes))
    # While any learner has less than the floor, the largest has more: at most floor * learners moves.
    for receiver in np.flatnonzero(sizes < floor):
        for _ in range(floor - sizes[receiver]):
            sizes[np.argmax(sizes)] -= 1
            sizes[receiver] += 1
    return sizes


def _stratified(targets: NDArray[np.int64], sizes: Indices, generator: np.random.Generator) -> list[Indices]:
    """Assign the samples class by class, each learner's turns spread evenly over all of them."""
    order = np.concatenate(list(_shuffled_classes(targets, generator)))  # (n,) sorted by class
    shuffled = generator.permutation(len(sizes))  # (learners,) so that no learner always comes first among equal sizes
    learner = shuffled[even_turns(sizes[shuffled])]  # (n,)
    return np.split(order[np.argsort(learner, kind="stable")], np.cumsum(sizes)[:-1])


def even_turns(sizes: Indices) -> Indices:
    """Which learner has each turn, (n,): learner i has `sizes[i]` turns, as evenly spread as possible.

    After any t turns learner i has had t * sizes[i] / n of them, rounded up or down. So its k-th turn has a first and a
    last possible place; an order that respects all of them always exists (Tijdeman 1980), and choosing the most urgent
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
