"""A member's privacy budget: what its uploads have spent, saved with its state, and whether it may upload again."""

from __future__ import annotations

import logging

from consilience.peer.state import PeerState
from consilience.privacy.plan import PrivacyPlan, StepPlan

log = logging.getLogger("consilience.peer")


class PrivacyBudget:
    """Counts what a member has uploaded, and how many private steps were taken before.

    An upload is counted before it is sent, and its count is saved with it: a process that is killed spends too much at
    worst, never too little. An upload that replaces one of which no byte was sent costs nothing. One that was sent is
    not replaced (see `Outbox`); if it were, as in a folder of an earlier version, it would count, since somebody may
    have read it.
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
