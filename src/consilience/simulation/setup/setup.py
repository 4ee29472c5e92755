"""Everything about a simulation that is decided before its first round."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.method import Method
from consilience.methods.task_kinds import role_for_kind
from consilience.privacy.plan import PrivacyPlan
from consilience.simulation.setup.assign_data import AssignedData, assign_data
from consilience.simulation.setup.cohorts import Cohorts, plan_cohorts
from consilience.simulation.setup.compatibility import (
    check_ensemble,
    check_kind,
    check_metrics,
    check_roles,
    check_validation,
)
from consilience.simulation.setup.evaluation_plan import EvaluationPlan, plan_evaluation
from consilience.simulation.setup.federations import Federations, build_federations
from consilience.simulation.setup.participants import Model, Participant
from consilience.simulation.setup.partners import EVERYBODY, PartnerPlan, plan_partners
from consilience.simulation.setup.privacy import plan_privacy
from consilience.simulation.setup.sample_budgets import check_sample_epsilons
from consilience.simulation.setup.variants import Variants, variants_of
from consilience.task import TaskKind

log = logging.getLogger("consilience")


@dataclass(frozen=True)
class Setup:
    """Who takes part, with which data, in which cohorts, and what is evaluated; nothing in it changes."""

    method: Method
    variants: Variants
    federations: Federations
    data: AssignedData
    cohorts: Cohorts
    evaluation: EvaluationPlan
    partners: PartnerPlan = EVERYBODY
    privacy: PrivacyPlan | None = None  # of what is uploaded

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles in the order in which they act in a round."""
        return tuple(self.method.roles)

    @property
    def public_bytes(self) -> np.ndarray:
        """Bytes of the public set that each learner downloads, (federations, learners).

        Images have one byte for each value, tables four.
        """
        downloaded = np.zeros((self.federations.count, self.federations.learners))
        host = self.method.host
        if host is not None:
            shape = self.data.train.shape
            sample_bytes = math.prod(shape) * (1 if len(shape) == 3 else 4)
            downloaded += sample_bytes * self.data.sizes[:, host, None]
            downloaded[:, host] = 0
        return downloaded

    def label(self, federation: int) -> str:
        """A federation's seed and variant, for messages."""
        variant = federation * self.variants.count // self.federations.count
        return ", ".join([f"seed {self.federations.seeds[federation]}", *self.variants.names[variant : variant + 1]])


def build_setup(
    config: Config,
    method: Method,
    data: Dataset,
    models: Sequence[Model],
    first: int = 0,
    *,
    elsewhere: bool = False,
    kept: np.ndarray | None = None,
) -> Setup:
    """Assign data, roles and models to learners, and refuse what cannot work together.

    first: the number of the first learner, where others are elsewhere. elsewhere: the others have roles of their own,
    so that these learners need not have all of them. kept: (seeds, training samples) which samples each federation
    has, of one split for all of them: shadow federations of an audit.
    """
    if method.settings.get("own_model") and not config.evaluation.validation:
        log.warning(
            "method %s: own_model is true and validation is 0: without held-out samples to choose by, no own model is "
            "trained; set validation=0.2",
            method.name,
        )
    variants = variants_of(config, method, models)
    if not elsewhere:
        check_roles(method, variants.learners)
    check_ensemble(config.evaluation.ensemble, method, variants)
    variants = replace(variants, participants=_for_kind(method, variants, data.kind))
    check_kind(config, data)
    evaluation = plan_evaluation(config, variants)
    check_validation(config.evaluation.validation, method, evaluation.accuracy_source)
    check_metrics(config.evaluation.metrics, method, variants, data)
    federations = build_federations(config, method, variants.learners, variants.count)
    assigned = assign_data(config, method, data, variants, first, kept)
    variants = replace(variants, participants=_with_batches(config, variants, assigned))
    for participants in variants.participants:
        check_sample_epsilons(config, method, participants, assigned)
    partners, privacy = plan_partners(config, method), plan_privacy(config, variants.participants[0])
    cohorts = plan_cohorts(config, method, variants, federations, assigned, partners, privacy)
    return Setup(method, variants, federations, assigned, cohorts, evaluation, partners, privacy)


def _for_kind(method: Method, variants: Variants, kind: TaskKind) -> tuple[tuple[Participant, ...], ...]:
    """Participants whose roles suit the kind of task; refused where an exchange or the objective does not serve it."""
    return tuple(
        tuple(replace(each, role=role_for_kind(method, each.role, kind)) for each in some)
        for some in variants.participants
    )


def _with_batches(config: Config, variants: Variants, data: AssignedData) -> tuple[tuple[Participant, ...], ...]:
    """Participants whose exchanges know how many batches a learner with the mean number of samples takes in a round.

    It does not depend on the seed, so that a federation is the same alone and together with others.
    """
    samples = (1 - config.evaluation.validation) * data.sizes[0].sum() / variants.learners
    batches = config.training.epochs * math.ceil(samples / config.training.batch_size)
    return tuple(tuple(each.with_batches(max(batches, 1)) for each in some) for some in variants.participants)
