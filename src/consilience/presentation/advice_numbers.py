"""What a trial of working together has found, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from consilience.presentation.paired import Difference
from consilience.presentation.trial import (
    Effect,
    LearnerGain,
    LeftOut,
    TrialAnswers,
    TrialSize,
    Verdict,
    surely_helped,
)


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class AdviceNumbers:
    """The numbers that sentences and tables are made of; all are of held-out samples."""

    size: TrialSize
    verdict: Verdict
    gain: Difference
    """Of own answers over learning alone, in points: the mean over learners, paired by seed."""
    common_gain: Difference
    """Of common answers over learning alone, on everybody's held-out samples."""
    learners: tuple[LearnerGain, ...]
    control: tuple[LearnerGain, ...]
    """Learning alone with another order of batches, against learning alone: what differs by chance."""
    method: str
    """Of those within half a point of the best over all seeds, the one that sends least."""
    chosen: tuple[str, ...]
    """For each seed, the method that the others choose so; `gain` and `learners` are of its answers."""
    alone: str
    """The best way of learning alone over all seeds, which is compared with."""
    answers: Mapping[str, TrialAnswers]
    """Of every method that was run, the control among them."""
    tried: tuple[str, ...]
    """The methods of working together that were run."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def helped(self) -> tuple[str, ...]:
        """The learners that gain, beyond chance."""
        return self._names("helped")

    @property
    def harmed(self) -> tuple[str, ...]:
        """The learners that lose, beyond chance."""
        return self._names("harmed")

    @property
    def not_clear(self) -> tuple[str, ...]:
        """The learners of whom it cannot be told."""
        return self._names("not clear")

    @property
    def for_some(self) -> bool:
        """Whether it pays for some learners, though not clearly for all of them on average."""
        return self.verdict != "yes" and bool(surely_helped(self.learners))

    def _names(self, effect: Effect) -> tuple[str, ...]:
        return tuple(each.name for each in self.learners if each.effect == effect)
