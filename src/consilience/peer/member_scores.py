"""The scores of a member: of its model on its test samples, and of its own answer on data like its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.kinds import Kind, Metric, kind_of
from consilience.peer.member_role import MemberRole
from consilience.simulation.engines.probing import ProbeSamples, probe
from consilience.simulation.engines.shared_data import SharedData


@dataclass(frozen=True)
class MemberScores:
    """Scores of a member's first role, which has its model between rounds.

    data: the member's own samples, with those for tests. labeled: whether the classifier is trained.
    """

    role: MemberRole
    data: SharedData
    labeled: bool

    @property
    def metric(self) -> Metric:
        """The score: accuracy, or what stands in its place."""
        return self._kind.metric

    def common(self) -> float:
        """The score on the test samples, in %: of the classifier, or where none is trained of a linear probe."""
        role, data = self.role, self.data
        if self.labeled:
            sums = role.session.evaluate(*data.tests()).numpy(force=True)
        else:
            samples = ProbeSamples(data.inputs, data.targets, data.test_inputs, data.test_targets)
            sums = probe(role.learner, samples, ("scaled",), role.session.key.seed)[0]
        return float(self._kind.score(sums[None], role.setup.data.test_totals)[0])

    def own(self) -> float | None:
        """The score of the own answer on data like the member's own, in %; None where it has no own answer."""
        role, assigned = self.role, self.role.setup.data
        if not role.learner.role.objective.has_own_answer:
            return None
        if role.learner.role.objective.chooses:
            role.session.choose(*role.data.held_out(role.plan.members.held_out(np.array([0]))[0]))
        sums = role.session.evaluate(*role.data.tests(), "own").numpy(force=True)
        return float(self._kind.score(sums[None], assigned.test_totals, assigned.shares[0])[0])

    @property
    def _kind(self) -> Kind:
        """The kind of task, which says what the score is."""
        return kind_of(self.role.learner.task)
