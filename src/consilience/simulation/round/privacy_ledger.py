"""What every learner of a run has spent of its privacy budget, and whether it may upload again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.privacy.plan import PrivacyPlan, StepPlan
from consilience.simulation.engines.cohort import CohortPlan

Place = tuple[int, int]
"""A learner by its federation and its number."""


class PrivacyLedger:
    """Counts of every learner, (federations, learners) each.

    uploads: private ones. steps: private ones. released: those taken before the last upload; later ones cost nothing,
    since nothing that depends on them has left the learner.
    """

    fields = ("uploads", "steps", "released")

    def __init__(self, plan: PrivacyPlan, shape: tuple[int, int], cohorts: Sequence[CohortPlan]) -> None:
        self.plan, self._cohorts = plan, cohorts
        self.uploads, self.steps, self.released = (np.zeros(shape, dtype=np.int64) for _ in self.fields)

    def allowed(self, train: bool) -> NDArray[np.bool_]:
        """Who may upload now, or after a round of training."""
        found = self.uploads < self.plan.uploads
        for cohort in self._cohorts:
            for at, plan, steps in _private_steps(cohort, np.arange(len(cohort.members))):
                found[at] &= self.plan.allows(int(self.uploads[at]), int(self.steps[at]) + train * steps, plan)
        return found

    def record(self, cohort: int, rows: np.ndarray, uploading: np.ndarray, *, trained: bool) -> None:
        """Note what some rows of a cohort have done; uploading: (rows,) which of them have uploaded."""
        plan = self._cohorts[cohort]
        if plan.spec.privacy is None:
            return
        for at, _, steps in _private_steps(plan, rows) if trained else ():
            self.steps[at] += steps
        chosen = rows[uploading]
        sent = plan.members.federation[chosen], plan.members.learner[chosen]
        self.uploads[sent] += 1
        self.released[sent] = self.steps[sent]

    def epsilon(self) -> np.ndarray:
        """What each learner has spent, (federations, learners)."""
        plans, spent = self._step_plans(), np.zeros(self.uploads.shape)
        for at in np.ndindex(spent.shape):
            spent[at] = self._spent((at[0], at[1]), plans)
        return spent

    def sample_epsilons(self) -> list[dict[str, float]]:
        """For each epsilon that samples have of their own: how many do, and the most that any of them has spent."""
        plans, counts, spent = self._step_plans(), Counter[float](), dict[float, float]()
        for cohort in self._cohorts:
            members = cohort.members
            for row in range(len(members)) if members.epsilons is not None else ():
                assert members.epsilons is not None
                at = int(members.federation[row]), int(members.learner[row])
                own = members.epsilons[members.start[row] : members.stop[row]]
                levels, sizes = np.unique(own[own < self.plan.epsilon], return_counts=True)
                for epsilon, size in zip(levels.tolist(), sizes.tolist(), strict=True):
                    counts[epsilon] += size
                    spent[epsilon] = max(spent.get(epsilon, 0.0), self._spent(at, plans, epsilon))
        return [{"epsilon": e, "samples": counts[e], "spent": spent[e]} for e in sorted(counts)]

    def describe(self) -> dict[str, Any]:
        """The plan, and what samples with an epsilon of their own have spent."""
        own = self.sample_epsilons()
        return self.plan.describe() | ({"sample_epsilons": own} if own else {})

    def _spent(self, at: Place, plans: Mapping[Place, StepPlan], own: float = math.inf) -> float:
        return self.plan.spent(int(self.uploads[at]), int(self.released[at]), plans.get(at), own)

    def _step_plans(self) -> dict[Place, StepPlan]:
        """How learners take private steps."""
        plans: dict[Place, StepPlan] = {}
        for cohort in self._cohorts:
            plans |= {at: plan for at, plan, _ in _private_steps(cohort, np.arange(len(cohort.members)))}
        return plans


def _private_steps(cohort: CohortPlan, rows: np.ndarray) -> Iterator[tuple[Place, StepPlan, int]]:
    """The learners of some rows whose steps are private: who, how they take them, and how many in a round."""
    privacy, members = cohort.spec.privacy, cohort.members
    if privacy is None or not privacy.steps:
        return
    for row in rows.tolist():
        size, at = int(members.sizes[row]), (int(members.federation[row]), int(members.learner[row]))
        yield at, privacy.steps[size], cohort.work.epochs * -(-size // cohort.work.batch_size)
