"""What a trial of several methods found on held-out samples: the gain over learning alone, for all and for each.

In each repetition every learner holds out a part of its samples, and answers them by its own answer. The score is that
of the task: accuracy, F1 or R². The method that is compared is chosen by the other repetitions: chosen by the same
samples, the best of several would look better than it is. The way of learning alone is the best of all repetitions:
working together has to beat it even if chance is on its side. Chosen by the other repetitions, it would look worse
than it is where several are alike: the one that does well in a repetition has done worse in the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from consilience.kinds import ACCURACY
from consilience.presentation.paired import Difference, paired_difference

Verdict = Literal["yes", "no", "not clear"]
Effect = Literal["helped", "harmed", "not clear"]
WITH_ITSELF = " with itself only"
"""In the name of a way of learning alone: a method whose learners receive only what they have sent themselves."""
_ROUNDING = 1e-9  # in points, of a difference of two scores
CHANCE, SURE = 0.1, 0.05
"""How often a learner may be called helped, or harmed, by chance alone; and how often any of all learners may be, where
not all of them are helped on average."""
WORTH, NEAR = 2.0, 0.5
"""In points: the smallest gain worth having, where nobody says another; and how much less accurate than the best the
method that sends least may be. With 8 seeds and 1,000 samples, an interval is 1 to 2 points wide on each side: a trial
of this size could seldom exclude a gain of one point."""


@dataclass(frozen=True)
class TrialSize:
    """What a trial was: on which data, of how many learners and samples, how long."""

    data: str
    learners: tuple[str, ...]
    """Their names or numbers."""
    samples: int
    """Of all learners together; each is held out once."""
    rounds: int
    seeds: int
    """Repetitions: each has its own held-out samples, first weights and batches."""
    seed: int
    """The first; it decides the split of the data between learners."""
    worth: float = WORTH
    """The smallest gain worth having, in points."""
    budget: int | None = None
    """The most bytes that a learner may send and receive in a round."""
    metric: str = ACCURACY.key
    """The key of the score."""


@dataclass(frozen=True)
class LeftOut:
    """A method that was not tried: its bytes, which are too many, or the reason for which it does not fit."""

    method: str
    bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class TrialAnswers:
    """The answers of one method to held-out samples.

    own: of each repetition and learner, what its samples add to the score of its own answer, see `score`; for classes,
    (samples,) whether it is right. common: (repetitions, learners) the score of the common answer in percent, on
    everybody's held-out samples. up, down: the largest messages of a learner in a round, in bytes.
    """

    method: str
    own: Sequence[Sequence[np.ndarray]]
    common: np.ndarray
    up: int = 0
    down: int = 0

    @property
    def bytes(self) -> int:
        """What a learner sends and receives in a round, at most."""
        return self.up + self.down

    @property
    def by_repetition(self) -> np.ndarray:
        """The score of own answers in percent, (repetitions,): every learner counts alike."""
        return np.array([np.mean([score(mine) for mine in row if len(mine)]) for row in self.own])

    @property
    def by_learner(self) -> np.ndarray:
        """The score of own answers in percent, (learners,), of all repetitions together."""
        return np.array([score(np.concatenate(mine)) for mine in zip(*self.own, strict=True)])

    @property
    def mean(self) -> float:
        """The score of own answers in percent."""
        return float(self.by_repetition.mean())


@dataclass(frozen=True)
class LearnerGain:
    """How much a learner gains by working together, in points of percent of its own held-out samples."""

    name: str
    samples: int
    alone: float
    together: float
    effect: Effect
    chance: float
    """How often as large a difference, in this direction, is there by chance: a sign test."""

    @property
    def gain(self) -> float:
        """In points."""
        return self.together - self.alone


@dataclass(frozen=True)
class Chosen:
    """The method that other repetitions choose, for each repetition, and its answers there."""

    methods: tuple[str, ...]
    answers: TrialAnswers


def score(samples: np.ndarray) -> float:
    """The score in percent: the mean of (samples,), or of (samples, 2) the sum of the first column over the second's.

    >>> score(np.array([True, False])), score(np.array([[2.0, 3.0], [0.0, 1.0]]))
    (50.0, 50.0)
    """
    if samples.ndim == 1:
        return float(100 * samples.mean())
    above, below = samples.sum(0)
    return float(100 * above / below) if below else 100.0


def _of_each(samples: np.ndarray) -> np.ndarray:
    """The score of each sample by itself, 0 to 1 or below, (samples,)."""
    if samples.ndim == 1:
        return samples.astype(np.float64)
    return np.where(samples[:, 1] > 0, samples[:, 0] / np.maximum(samples[:, 1], 1), 1.0)


def difference(ours: TrialAnswers, theirs: TrialAnswers, common: bool = False) -> Difference:
    """The difference in points, paired by repetition; common: of the common answers, on everybody's samples."""
    values = [each.common.mean(1) if common else each.by_repetition for each in (ours, theirs)]
    found = paired_difference(*(dict(enumerate(value.tolist())) for value in values))
    assert found is not None
    return found


def choose_by_others(tried: Sequence[TrialAnswers], near: float = 0.0) -> Chosen:
    """For each repetition the method that the others choose, by the rule of `best_of_all`."""
    means = np.stack([each.by_repetition for each in tried])  # (methods, repetitions)
    best = [_best(np.delete(means, k, axis=1).mean(1), tried, near) for k in range(means.shape[1])]
    answers = TrialAnswers(
        most_common([tried[i].method for i in best]),
        [tried[i].own[k] for k, i in enumerate(best)],
        np.stack([tried[i].common[k] for k, i in enumerate(best)]),
    )
    return Chosen(tuple(tried[i].method for i in best), answers)


def best_of_all(tried: Sequence[TrialAnswers], near: float = 0.0) -> TrialAnswers:
    """The method that sends least of those within `near` points of the best over all repetitions."""
    return tried[_best(np.array([each.mean for each in tried]), tried, near)]


def _best(means: np.ndarray, tried: Sequence[TrialAnswers], near: float) -> int:
    good = [i for i in range(len(tried)) if means[i] >= means.max() - near - 1e-9]
    return min(good, key=lambda i: (tried[i].bytes, -float(means[i]), i))


def most_common(methods: Sequence[str]) -> str:
    """The method named most often; of several the first."""
    return max(dict.fromkeys(methods), key=methods.count)


def learner_gains(
    together: TrialAnswers, alone: TrialAnswers, names: Sequence[str], worth: float
) -> tuple[LearnerGain, ...]:
    """Each learner with and without the others, on its own held-out samples of all repetitions.

    It is helped if the gain is more than `worth` points, and more than chance would do in one of ten learners.
    """
    found = []
    for who, name in enumerate(names):
        ours, theirs = (np.concatenate([row[who] for row in each.own]) for each in (together, alone))
        our_score, their_score = score(ours), score(theirs)
        gain, better = our_score - their_score, _of_each(ours) - _of_each(theirs)
        won, lost = int((better > 0).sum()), int((better < 0).sum())
        chance = sign_test(won, lost) if gain > 0 else sign_test(lost, won)
        clear = abs(gain) > worth + _ROUNDING and chance <= CHANCE
        effect: Effect = "not clear" if not clear else "helped" if gain > 0 else "harmed"
        found.append(LearnerGain(name, len(ours), their_score, our_score, effect, chance))
    return tuple(found)


def sign_test(won: int, lost: int) -> float:
    """The chance that of won + lost fair coins at least `won` fall on the same, named side.

    >>> sign_test(5, 0)
    0.03125
    """
    tosses = won + lost
    return float(sum(math.comb(tosses, k) for k in range(won, tosses + 1)) / 2**tosses)


def verdict(gain: Difference, worth: float) -> Verdict:
    """Yes if the interval is above 0 and the gain is worth having, no if it excludes such a gain, else not clear."""
    if gain.low is None or gain.high is None or gain.seeds < 3:
        return "not clear"
    if gain.low > 0 and gain.mean >= worth:
        return "yes"
    return "no" if gain.high < worth else "not clear"


def surely_helped(learners: Sequence[LearnerGain]) -> tuple[LearnerGain, ...]:
    """Those who are helped even if one allows for having looked at all learners (Bonferroni)."""
    return tuple(each for each in learners if each.effect == "helped" and each.chance * len(learners) <= SURE)
