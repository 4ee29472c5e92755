"""Which learners are where: every row of a cohort belongs to one shard, and stays there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from consilience.simulation.engines.cohort import CohortPlan

_NAMED = 8  # learners that a message names


class Deal:
    """The rows of all cohorts, dealt to shards.

    in_blocks: whether neighboring rows stay together, as stacks need it; otherwise they are dealt in turn, so that all
    shards work on every job.
    """

    def __init__(self, plans: Sequence[CohortPlan], shards: int, in_blocks: bool) -> None:
        self.plans = plans
        total = sum(len(plan.members) for plan in plans)
        self.shards, first = min(shards, total), 0
        self.owner: list[np.ndarray] = []
        """For each cohort, the shard of every row."""
        for plan in plans:
            number = first + np.arange(len(plan.members))
            self.owner.append(number * self.shards // total if in_blocks else number % self.shards)
            first += len(plan.members)

    @cached_property
    def place(self) -> list[np.ndarray]:
        """For each cohort, the number of every row in its shard."""
        found = [np.zeros_like(owner) for owner in self.owner]
        for place, owner in zip(found, self.owner, strict=True):
            for shard in np.unique(owner):
                place[owner == shard] = np.arange(int((owner == shard).sum()))
        return found

    def cohorts(self, shard: int) -> list[int]:
        """The cohorts of which a shard has rows."""
        return [i for i, owner in enumerate(self.owner) if (owner == shard).any()]

    def rows(self, shard: int, cohort: int) -> np.ndarray:
        """The rows of a cohort that a shard has."""
        return np.flatnonzero(self.owner[cohort] == shard)

    def shards_of(self, cohort: int, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The shards that have these rows, each with the positions of its own among them."""
        owner = self.owner[cohort][rows]
        return [(int(shard), np.flatnonzero(owner == shard)) for shard in np.unique(owner)]

    def plans_of(self, shard: int) -> list[CohortPlan]:
        """The cohorts of a shard, with its own rows alone."""
        return [_some_rows(self.plans[i], self.rows(shard, i)) for i in self.cohorts(shard)]

    def describe(self, shard: int) -> str:
        """The learners of a shard, for messages: "learners 0, 2"."""
        numbers = [self.plans[i].members.learner[self.rows(shard, i)] for i in self.cohorts(shard)]
        learners = np.unique(np.concatenate(numbers)).tolist()
        more = f" and {len(learners) - _NAMED} more" if len(learners) > _NAMED else ""
        several = "learners" if len(learners) > 1 else "learner"
        return f"{several} {', '.join(map(str, learners[:_NAMED]))}{more}"


def _some_rows(plan: CohortPlan, rows: np.ndarray) -> CohortPlan:
    members = plan.members
    mine = {name: getattr(members, name)[rows] for name in ("federation", "learner", "seed", "start", "stop", "even")}
    held = None if members.validation is None else tuple(members.validation[row] for row in rows)
    settings = {key: tuple(values[row] for row in rows) for key, values in plan.settings.items()}
    return replace(plan, members=replace(members, **mine, validation=held), settings=settings)
