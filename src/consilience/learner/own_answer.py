"""The own answer of a learner at work, as a module that can be exported."""

from __future__ import annotations

from typing import cast

from torch import nn

from consilience.export import OwnAnswer
from consilience.learner.learner import Learner
from consilience.learner.modules import OWN_MODEL
from consilience.models import SplitModel
from consilience.objectives.two_answers import LOG_SHARES, OWN_HEAD, WEIGHTS


def own_answer_of(learner: Learner) -> OwnAnswer | None:
    """The own answer of the learner whose state is bound, around its model; None where it has no other answer."""
    if not learner.role.objective.has_own_answer:
        return None
    private, state = learner.modules.extra[learner.role.objective.name], learner.state.objective_state
    head = cast(nn.Linear, private[OWN_HEAD]) if learner.spec.own_head else None
    own = cast(SplitModel, private[OWN_MODEL]) if learner.spec.own_model else None
    return OwnAnswer(learner.model, state.get(LOG_SHARES), head, own, state.get(WEIGHTS))
