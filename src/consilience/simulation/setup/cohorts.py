"""Cohorts: learners of one role and architecture, whose states are stacked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from consilience.config import schedules
from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.functional.training_augmentation import build_augmentation
from consilience.learner.batches import LocalWork
from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.learner.stream_reader import StreamReader
from consilience.method import Method
from consilience.models import is_model_file, model_digest
from consilience.privacy.plan import PrivacyPlan
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.setup.assign_data import AssignedData, members_of
from consilience.simulation.setup.compatibility import (
    check_channels,
    check_turns,
    check_watched,
    check_width,
    min_batch_size,
)
from consilience.simulation.setup.federations import Federations
from consilience.simulation.setup.participants import Participant, learner_build
from consilience.simulation.setup.partners import EVERYBODY, PartnerPlan, check_exchanges
from consilience.simulation.setup.privacy import check_private, learner_privacy
from consilience.simulation.setup.resistance import check_robustness
from consilience.simulation.setup.sample_budgets import with_draw_shares
from consilience.simulation.setup.subspaces import check_subspace
from consilience.simulation.setup.variants import Variants
from consilience.task import Public
from consilience.wire.agreement import merge_channels

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bf16": torch.float32, "auto": torch.float32}


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run, and which of their rows belongs to which learner."""

    plans: tuple[CohortPlan, ...]
    rows: np.ndarray  # (cohorts, federations, learners) a learner's row in each cohort, -1 where it has none
    main: np.ndarray  # (federations, learners) the cohort of a learner's first role: it has the model between rounds

    def in_federation(self, federation: int) -> tuple[int, ...]:
        """The cohorts with a learner in a federation."""
        return tuple(np.flatnonzero((self.rows[:, federation] >= 0).any(-1)).tolist())


def plan_cohorts(
    config: Config,
    method: Method,
    variants: Variants,
    federations: Federations,
    data: AssignedData,
    partners: PartnerPlan = EVERYBODY,
    privacy: PrivacyPlan | None = None,
) -> Cohorts:
    """Put learners that can be stacked into one cohort; refuse exchanges that do not suit each other."""
    reader = None if data.train.stream is None else StreamReader(data.train.stream)
    planner = _CohortPlanner(config, method, variants, federations.seeds, data, privacy, reader)
    stackable: dict[str, list[int]] = {}  # places in the list of participants
    for place, participant in enumerate(variants.participants[0]):
        stackable.setdefault(participant.stacking_key, []).append(place)
    planned = [planner.plan(places, some) for places in stackable.values() for some in planner.same_shapes(places)]
    cohorts = _with_rows(tuple(plan for plan, _ in planned), method, federations)
    for together in dict.fromkeys(map(cohorts.in_federation, range(federations.count))):
        first_learners = [cohorts.plans[i].members.learner[0] for i in together]
        check_channels([planned[i][1] for i in together], first_learners)
        check_turns([planned[i][1] for i in together], first_learners, federations.attacks)
        channels = merge_channels([planned[i][1].channels for i in together]).values()
        check_exchanges(partners, [planned[i][1] for i in together], federations.robustness)
        check_subspace([planned[i][1] for i in together], partners)
        check_robustness(federations.robustness, federations.attacks, channels, federations.learners)
    return cohorts


def _with_rows(plans: tuple[CohortPlan, ...], method: Method, federations: Federations) -> Cohorts:
    """Look up every learner's rows and its main cohort."""
    shape = (federations.count, federations.learners)
    rows, main = np.full((len(plans), *shape), -1), np.zeros(shape, dtype=np.int64)
    first_role = np.array([method.role_of(who) for who in range(federations.learners)])
    for i, plan in enumerate(plans):
        rows[i][plan.members.federation, plan.members.learner] = np.arange(len(plan.members))
        main[(rows[i] >= 0) & (method.pooled | (first_role == plan.role))] = i
    return Cohorts(plans, rows, main)


@dataclass(frozen=True)
class _CohortPlanner:
    """What every cohort is planned from."""

    config: Config
    method: Method
    variants: Variants
    seeds: tuple[int, ...]
    data: AssignedData
    privacy: PrivacyPlan | None
    reader: StreamReader | None  # one for all learners

    def same_shapes(self, places: list[int]) -> list[list[int]]:
        """Federations by the size of their public set, where these learners use it: it decides tensor shapes."""
        by_size: dict[int, list[int]] = {}
        public = self.variants.participants[0][places[0]].role.data == "public"
        for f in range(len(self.seeds)):
            by_size.setdefault(len(self._public_samples(f)) if public else 0, []).append(f)
        return list(by_size.values())

    def plan(self, places: list[int], federations: list[int]) -> tuple[CohortPlan, Learner]:
        """The cohort of these participants, by their places in the list, in these federations."""
        config, data = self.config, self.data.train
        participant = self.variants.participants[0][places[0]]
        rows = [(f, place) for f in federations for place in places]
        participants = [self._participants(f)[place] for f, place in rows]
        settings = _individual_settings(participants)
        members = members_of([f for f, _ in rows], participants, self.seeds, self.data, self.method.host)
        spec = self._spec(participant, settings, federations)
        spec = replace(spec, privacy=learner_privacy(self.privacy, participant, members.sizes))
        members = with_draw_shares(members, participants, data, self.privacy, spec.privacy)
        learner = Learner(replace(spec, reader=None))  # it is tried on zeros and reads no samples
        spec = replace(spec, frozen_sha256=learner.modules.frozen_sha256)
        check_private(learner)
        check_width(learner, config.model.width)
        least = min_batch_size(learner, members, participant, data)
        if config.evaluation.watch is not None:
            check_watched(learner, config.evaluation.watch)
        reset = config.training.optimizer_state == "reset" or participant.role.data == "public"
        if reset and participant.role.turns is not None:
            raise ConfigurationError(
                "optimizer_state is 'reset', and in split learning the server keeps its optimizer's state from one "
                "learner's turn to the next; use 'keep'"
            )
        work = LocalWork(participant.batch_size, participant.epochs, least, reset, participant.role.batch_order)
        size = sum(parameter.numel() for root in learner.modules.roots() for parameter in root.parameters())
        plan = CohortPlan(participant.role_name, spec, members, work, size, settings)
        return plan, learner

    def _participants(self, federation: int) -> tuple[Participant, ...]:
        """The participants of a federation's variant."""
        return self.variants.participants[federation * self.variants.count // len(self.seeds)]

    def _spec(
        self, participant: Participant, settings: Iterable[tuple[str, str]], federations: list[int]
    ) -> LearnerSpec:
        config, data, model = self.config, self.data.train, participant.model
        named = isinstance(model, str)
        return LearnerSpec(
            build=learner_build(model, data, config.model.width),
            role=participant.role,
            optimizer=participant.optimizer,
            shape=data.shape,
            model=str(model) if named else getattr(model, "__name__", "own model"),
            dtype=DTYPES[config.execution.precision],
            device=config.execution.device,
            half=_uses_bfloat16(config, self.variants),
            varied=_by_owner(settings),
            scaling=data.scaling.of_pixels,
            augmentation=build_augmentation(config.training.augment),
            target=data.target,
            symbols=len(data.alphabet),
            reader=self.reader,
            public=self._public(federations) if participant.role.data == "public" else None,
            named=named,
            file_sha256=model_digest(model) if isinstance(model, str) and is_model_file(model) else "",
        )

    def _public(self, federations: list[int]) -> Public:
        """The public sets of federations that have equally many samples in it, with their fingerprint."""
        chosen, fingerprint = [self._public_samples(f) for f in federations], hashlib.sha256()
        for samples in chosen:
            fingerprint.update(self.data.train.inputs[samples].tobytes())
        return Public(len(chosen[0]), fingerprint.hexdigest())

    def _public_samples(self, federation: int) -> np.ndarray:
        assert self.method.host is not None
        return np.sort(self.data.parts[federation][self.method.host])


def _uses_bfloat16(config: Config, variants: Variants) -> bool:
    """Whether models run in bfloat16: if asked for, or by default on a GPU where learners learn without labels."""
    gpu = torch.device(config.execution.device).type == "cuda"
    return config.execution.precision == "bf16" or (
        config.execution.precision == "auto" and gpu and not variants.labeled
    )


def _individual_settings(participants: Sequence[Participant]) -> dict[tuple[str, str], tuple[schedules.Rate, ...]]:
    """The numbers in which stackable learners differ, or that change with the rounds: one for each row."""
    columns: dict[tuple[str, str], list[schedules.Rate]] = {}
    for participant in participants:
        for owner, name, value in participant.numbers():
            columns.setdefault((owner, name), []).append(value)
    return {
        key: tuple(values)
        for key, values in columns.items()
        if len(set(values)) > 1 or isinstance(values[0], schedules.Schedule)
    }


def _by_owner(settings: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for owner, name in settings:
        found[owner] = (*found.get(owner, ()), name)
    return found
