"""A member's privacy budget: what its uploads have spent, saved with its state, and whether it may upload again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.exchanges.averaging import AveragingExchange
from consilience.exchanges.base import Exchange
from consilience.learner.private_uploads import LearnerPrivacy
from consilience.method import Role
from consilience.peer.state import PeerState
from consilience.privacy.plan import PrivacyPlan, StepPlan
from consilience.simulation.setup.privacy import check_private_exchanges, refuse_batch_statistics
from consilience.wire.charter import Charter

log = logging.getLogger("consilience.peer")


class PrivacyBudget:
    """Counts what a member has uploaded, and how many private steps were taken before.

    An upload is counted before it is sent, and its count is saved with it: a process that is killed spends too much at
    worst, never too little. An upload that replaces one of which no byte was sent costs nothing; one that was sent and
    refused for now has been read by somebody, and its replacement is another upload.
    """

    def __init__(
        self, plan: PrivacyPlan | None, state: PeerState, steps: StepPlan | None = None, steps_per_round: int = 0
    ) -> None:
        self.plan, self._state, self._steps = plan, state, steps
        if state.spent["lost"]:
            before = max(state.spent["uploads"] * steps_per_round, state.spent["steps"])
            state.spent = {**state.spent, "steps": before, "released": before, "lost": 0}

    @property
    def spent(self) -> float:
        """Epsilon of all uploads so far; 0 where uploads are not private."""
        counts = self._state.spent
        return 0.0 if self.plan is None else self.plan.spent(counts["uploads"], counts["released"], self._steps)

    def allows_upload(self) -> bool:
        """Whether one more upload is within the budget; says so once when it is not."""
        counts = self._state.spent
        if self.plan is None or self.plan.allows(counts["uploads"], counts["steps"], self._steps):
            return True
        log.info("the privacy budget is spent: nothing more is uploaded, and training goes on")
        return False

    def add_steps(self, count: int) -> None:
        """Count private steps of local training."""
        if self._steps is not None:
            self._state.spent = {**self._state.spent, "steps": self._state.spent["steps"] + count}

    def add_upload(self) -> None:
        """Count an upload that is about to be sent, in the place of one that was never sent if there is one."""
        if self.plan is not None:
            counts, pending = self._state.spent, self._state.pending
            replaces = pending is not None and not pending.was_sent
            self._state.spent = {
                **counts, "uploads": counts["uploads"] + (not replaces), "released": counts["steps"]
            }  # fmt: skip


def charter_plan(charter: Charter, exchanges: Sequence[Exchange]) -> PrivacyPlan | None:
    """The plan of a federation's charter for a member that uploads to these exchanges; None where it has none."""
    asked = charter.privacy
    if asked is None or not exchanges:
        return None
    releases = asked.private == "upload" or any(isinstance(e, AveragingExchange) for e in exchanges)
    return PrivacyPlan(asked.private, asked.epsilon, asked.delta, asked.clip, asked.uploads, releases)


def with_charter_privacy(config: Config, charter: Charter) -> Config:
    """A member's settings with the privacy of its federation."""
    asked = charter.privacy
    if asked is None:
        return config.replace(private="none", epsilon=None, private_uploads=None)
    return config.replace(
        private=asked.private,
        epsilon=asked.epsilon,
        delta=asked.delta,
        private_clip=asked.clip,
        private_uploads=asked.uploads,
    )


def loop_privacy(plan: PrivacyPlan | None, role: Role, federation: str) -> LearnerPrivacy | None:
    """What a training loop of one's own does so that its uploads are private; refuses what it cannot do."""
    if plan is None:
        return None
    if plan.private == "training":
        raise ConfigurationError(
            f"federation {federation!r} trains with noise in every step (private = 'training'), which a loop of your "
            f"own would have to add itself; take part with `consilience join`"
        )
    check_private_exchanges(role, plan.private)  # whatever the charter's author has checked
    return LearnerPrivacy(plan.private, plan.clip, plan.noise)


def check_fixed_encoder(privacy: LearnerPrivacy | None, features: nn.Module) -> None:
    """Refuse an encoder that training changes, where its features are shared as those of a fixed one."""
    if privacy is None or privacy.private != "fixed-encoder":
        return
    refuse_batch_statistics(features, "of your model")
    trained = [name for name, parameter in features.named_parameters() if parameter.requires_grad]
    if trained:
        raise ConfigurationError(
            f"the federation shares features of a fixed encoder (private = 'fixed-encoder'), and features.{trained[0]} "
            f"of your model is trained; freeze all parameters of its features, requires_grad=False"
        )
