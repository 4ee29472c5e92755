"""A simulation between two rounds: all that a later round depends on."""

from __future__ import annotations

import numpy as np

from consilience.simulation.engines.answers import AnswerStore
from consilience.simulation.engines.base import Engine
from consilience.simulation.federation import Federation
from consilience.simulation.round.privacy_ledger import PrivacyLedger
from consilience.simulation.round.seen_upload import OnAnswer, OnUpload
from consilience.simulation.setup.setup import Setup
from consilience.simulation.setup.subspaces import traveling_channels
from consilience.wire.byte_count import ByteCount

At = tuple[np.ndarray, np.ndarray]
"""Learners: their federations, and their numbers there."""


class RunState:
    """The federations of a run, the round they are in, and where learners' models are.

    The states of the learners, and the answers they hold, are the engine's.
    """

    def __init__(self, setup: Setup, engine: Engine) -> None:
        self.setup, self.engine = setup, engine
        self.learners = engine.learners
        self.byte_counts = [ByteCount(traveling_channels(each), each.moved_before_batches) for each in self.learners]
        self.federations: list[Federation] = []
        self.round = 0
        self.on_upload: OnUpload | None = None
        self.on_answer: OnAnswer | None = None
        self.diverged: dict[int, str] = {}
        """Federations of a sweep in which a value became NaN or infinite, and where; the others go on."""
        self.privacy = (
            None if setup.privacy is None else PrivacyLedger(setup.privacy, setup.federations.shape, engine.plans)
        )
        """What learners have spent of their privacy budgets; None where uploads are not private."""
        self.took_part = np.ones(setup.federations.shape, dtype=bool)  # in the last round
        plan, (federations, learners) = setup.partners, setup.federations.shape
        self.chosen = np.zeros((federations, learners, learners), dtype=bool) if plan.partners.chosen else None
        """Whose uploads each learner uses by its own choice, (federations, learners, learners); False before it."""
        self.model_location = (
            setup.cohorts.main.copy()
        )  # (federations, learners) the cohort with a learner's newest model

    @property
    def answers(self) -> AnswerStore:
        """The answers that learners hold."""
        return self.engine.answers

    def at(self, cohort: int) -> At:
        """The learners of a cohort's rows."""
        members = self.engine.plans[cohort].members
        return members.federation, members.learner

    def cohorts_of(self, role: str) -> list[int]:
        """The cohorts of a role."""
        return [i for i, plan in enumerate(self.engine.plans) if plan.role == role]

    def due(self, cohort: int) -> frozenset[str]:
        """The exchanges in which a cohort takes part in this round."""
        return frozenset(e.name for e in self.learners[cohort].exchanges if self.round % e.every == 0)

    def changing(self, cohort: int) -> list[str]:
        """The exchanges whose answers change a cohort's models."""
        learner = self.learners[cohort]
        return [e.name for e in learner.exchanges if e.changes_model and e.name in learner.downloading]
