"""The plan of a private run: a learner's budget, the noise it needs, and what is spent after some uploads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from consilience.config.privacy import Private
from consilience.privacy.accountant import (
    Releases,
    Steps,
    batch_capacity,
    draw_share,
    epsilon_spent,
    release_noise,
    step_noise,
    usable_delta,
)

NEIGHBORS: dict[Private, str] = {
    "upload": "any two data sets of a learner",
    "training": "data sets of a learner in which one sample is there or contributes nothing; how many samples it has "
    "is known",
    "fixed-encoder": "data sets of a learner in which one sample is there or contributes nothing; how many samples it "
    "has is known",
}
"""The neighboring relation of each mechanism: between which data sets nobody can tell who sees the uploads."""
MECHANISMS: dict[Private, str] = {
    "upload": "Gaussian noise on the whole upload, clipped to a norm",
    "training": "DP-SGD with Poisson sampling, and Gaussian noise on sums and counts of class means",
    "fixed-encoder": "Gaussian noise on sums and counts of class means of clipped features",
}


@dataclass(frozen=True)
class StepPlan:
    """How a learner takes private steps: see `Steps`. capacity: the most samples of a batch. planned: steps in all."""

    rate: float
    noise: float
    capacity: int
    planned: int
    expected: float  # size of a batch


@dataclass(frozen=True)
class PrivacyPlan:
    """A learner's budget, and how it is spent. All learners of a run have the same.

    uploads: for how many the budget is. releases: whether class means, which need noise of their own, are uploaded;
    with private="upload" everything is.
    """

    private: Private
    epsilon: float
    delta: float
    clip: float
    uploads: int
    releases: bool

    @property
    def noise(self) -> float:
        """The noise multiplier of an upload, or of the class means in it."""
        return release_noise(self.epsilon, self._delta, self.uploads if self.releases else 0, self._steps)

    @property
    def _steps(self) -> int:
        return int(self.private == "training")

    @property
    def _delta(self) -> float:
        return usable_delta(self.delta) if self.private == "training" else self.delta

    def for_steps(self, samples: int, batch_size: int, steps: int) -> StepPlan:
        """The private steps of a learner: how many in all until the last upload, on batches of which expected size."""
        rate, released = min(batch_size / samples, 1.0), self._released(self.uploads)
        noise = step_noise(self.epsilon, self._delta, steps, rate, released) if steps else 0.0
        capacity = batch_capacity(samples, rate, steps, self.epsilon, self.delta)
        return StepPlan(rate, noise, capacity, steps, rate * samples)

    def share_of(self, epsilon: float, plan: StepPlan | None = None) -> float:
        """How often a sample with an epsilon of its own is drawn, for steps and for class means: its probabilities as a
        share of those of the other samples, with which all planned steps and uploads stay within its epsilon.
        """
        planned = Steps() if plan is None else Steps(plan.planned, plan.rate, plan.noise)
        return draw_share(epsilon, self._delta, planned, self._released(self.uploads), self.epsilon)

    def spent(self, uploads: int, steps: int = 0, plan: StepPlan | None = None, own: float = math.inf) -> float:
        """Epsilon after some uploads; steps: private ones taken before the last of them.

        own: for a sample with an epsilon of its own, which is drawn less often than the others.
        """
        if not uploads:
            return 0.0
        share = self.share_of(own, plan)
        taken = Steps() if plan is None or not steps else Steps(steps, share * plan.rate, plan.noise)
        released = replace(self._released(uploads), rate=share)
        return epsilon_spent(taken, released, self._delta, min(own, self.epsilon))

    def allows(self, uploads: int, steps: int = 0, plan: StepPlan | None = None) -> bool:
        """Whether one more upload is within the budget, after so many, with so many private steps before it."""
        return uploads < self.uploads and (plan is None or steps <= plan.planned)

    def describe(self) -> dict[str, str | float | int]:
        """What a summary says of it, but for what was spent."""
        return {
            "private": self.private,
            "mechanism": MECHANISMS[self.private],
            "neighboring": NEIGHBORS[self.private],
            "target": self.epsilon,
            "delta": self.delta,
            "clip": self.clip,
            "uploads": self.uploads,
        }

    def _released(self, uploads: int) -> Releases:
        noise = self.noise
        return Releases(uploads, noise) if math.isfinite(noise) else Releases()
