"""The own answer of a learner at work, as a module that can be exported."""

from __future__ import annotations

from typing import cast

from torch import nn

from consilience.export import OwnAnswer
from consilience.learner.learner import Learner
from consilience.objectives.two_answers import LOG_SHARES, OWN_HEAD


def own_answer_of(learner: Learner) -> OwnAnswer | None:
    """The own answer of the learner whose state is bound, around its model; None where it has no other answer."""
    log_shares = learner.state.objective_state.get(LOG_SHARES)
    head = learner.modules.extra[learner.role.objective.name][OWN_HEAD] if learner.spec.own_head else None
    if log_shares is None and head is None:
        return None
    return OwnAnswer(learner.model, log_shares, cast("nn.Linear | None", head))
