"""One role of a member: its learner, its samples and its state, made as a simulation makes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from consilience.channels import Answer
from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Contribution, Received
from consilience.learner.batches import LearnerKey
from consilience.learner.initial_state import CommonValues, common_values, first_state
from consilience.learner.learner import Learner
from consilience.learner.noise_source import SECRET
from consilience.learner.session import LearnerSession, LocalSamples, is_finite
from consilience.method import Method
from consilience.peer.state import Arrays, ChannelUpload
from consilience.privacy.plan import StepPlan
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.jobs import non_finite_parameter, non_finite_upload
from consilience.simulation.engines.shared_data import SharedData, data_arrays, on_device
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.setup import Setup, build_setup
from consilience.wire.charter import Charter


@dataclass
class MemberRole:
    """A learner in one of its roles, and the answers that it holds there."""

    name: str
    setup: Setup
    data: SharedData
    session: LearnerSession
    common: CommonValues  # what its moving means start from
    received: dict[str, Received] = field(default_factory=dict)

    @property
    def plan(self) -> CohortPlan:
        """How it trains."""
        return self.setup.cohorts.plans[0]

    @property
    def learner(self) -> Learner:
        """What computes its losses and uploads."""
        return self.session.learner

    @property
    def trains(self) -> bool:
        """Whether it takes local steps."""
        return self.plan.work.epochs > 0

    @property
    def step_plan(self) -> StepPlan | None:
        """How it takes private steps; None where its steps are not private."""
        privacy = self.plan.spec.privacy
        return None if privacy is None or not privacy.steps else privacy.steps[len(self.session.samples)]

    @property
    def private_steps(self) -> int:
        """How many private steps it takes in a round."""
        batches = -(-len(self.session.samples) // self.plan.work.batch_size)
        return 0 if self.step_plan is None else self.plan.work.epochs * batches

    def hold(self, name: str, answer: Answer) -> None:
        """Hold an answer from now on, in the place of the last."""
        device, dtype = self.learner.device, self.learner.dtype
        tensors = {k: torch.from_numpy(np.array(t)).to(device, dtype) for k, t in answer.tensors.items()}
        count = torch.from_numpy(np.array(answer.count, dtype=np.float64)).to(device)
        self.received[name] = Received(tensors, count, torch.ones((), dtype=torch.bool, device=device))

    def changes_model(self, names: Collection[str]) -> bool:
        """Whether answers of these exchanges change the model."""
        return any(e.changes_model for e in self.learner.exchanges if e.name in self.learner.downloading & set(names))

    def follow_schedules(self, round_: int) -> None:
        """Give settings that change with the rounds, such as a learning rate schedule, their values in this one."""
        for (owner, name), values in self.plan.settings_at(round_).items():
            self.session.state.settings[owner][name].copy_(torch.from_numpy(values)[0])

    def restore_residuals(self, saved: Mapping[str, Arrays]) -> None:
        """Residuals are those of the last upload that the relay has acknowledged."""
        for exchange, residuals in self.session.state.residuals.items():
            for key, residual in residuals.items():
                known = saved.get(exchange, {}).get(key)
                residual.zero_() if known is None else residual.copy_(torch.from_numpy(np.array(known)))

    def channel_upload(self, name: str, upload: Contribution, version: int) -> ChannelUpload:
        """An upload as the outbox takes it, in the learner's precision."""

        def array(tensor: Tensor) -> np.ndarray:
            return tensor.to(self.learner.dtype).numpy(force=True).copy()

        residuals = self.session.state.residuals.get(name, {})
        tensors = {key: array(tensor) for key, tensor in upload.tensors.items()}
        return ChannelUpload(
            tensors, array(upload.weight), version, {key: array(residual) for key, residual in residuals.items()}
        )

    def non_finite(self, losses: Mapping[str, float], uploads: Mapping[str, Contribution]) -> str:
        """What is NaN or infinite after local work; nothing where all is well."""
        if not self.session.has_finite_parameters():
            return non_finite_parameter()
        wrong = [non_finite_upload(name) for name, upload in uploads.items() if not is_finite(upload)]
        wrong += [f"loss term {term!r} is NaN or infinite" for term, value in losses.items() if not np.isfinite(value)]
        return next(iter(wrong), "")

    @torch.no_grad()
    def take_model(self, other: MemberRole) -> None:
        """Copy the tensors that the models of two roles have in common from the other."""
        mine = self.learner.binding.model_tensors(self.session.state)
        theirs = other.learner.binding.model_tensors(other.session.state)
        for name in mine.keys() & theirs.keys():
            mine[name].copy_(theirs[name])


def build_roles(
    charter: Charter, number: int, config: Config, method: Method, samples: tuple[Dataset, Dataset | None], model: Model
) -> list[MemberRole]:
    """The roles of a member, in the order it acts; samples: its own, and the public set."""
    own, public = samples
    single = config.replace(learners=1, seed=charter.seed, seeds=1)
    if charter.roles is None:
        name = next(iter(method.roles))
        return [_build_role(name, build_setup(single, method, own, [model], first=number), number)]
    roles = []
    for name in charter.roles.roles_of(number):
        role = method.roles[name]
        role = replace(role, exchanges=tuple(e.for_federation(charter.roles.learners) for e in role.exchanges))
        if role.data == "own":
            alone = replace(method, roles={name: role}, members={}, usual=(), host=None)
            setup = build_setup(single, alone, own, [model], first=number, elsewhere=True)
        else:
            if public is None:
                raise ConfigurationError(
                    f"federation {charter.name!r}: role {name!r} works on the public set, which is not here; name it "
                    f"with --public PATH"
                )
            alone = replace(method, roles={name: role}, members={}, usual=(), host=0)
            whole = single.replace(validation=0.0)  # nothing of the public set is held out
            setup = build_setup(whole, alone, public, [model], elsewhere=True)
        roles.append(_build_role(name, setup, number))
    return roles


def _build_role(name: str, setup: Setup, number: int) -> MemberRole:
    """A role with the first state of a simulated learner of the member's number."""
    (plan,), members, seed = setup.cohorts.plans, setup.cohorts.plans[0].members, setup.federations.seeds[0]
    learner = Learner(plan.spec)
    data = on_device(data_arrays(setup.data.train, None), learner.device, learner.dtype)
    common = common_values(learner, seed)
    state = first_state(learner, seed, number, common, setup.data.counts_of(members.samples(0)))
    even, share = bool(members.even[0]), members.draw_share(0)
    mine = LocalSamples(data.inputs, data.targets, members.samples(0), members.shareable(0), even, share)
    session = LearnerSession(learner, state, LearnerKey(seed, number), mine, plan.work, SECRET)
    return MemberRole(name, setup, data, session, common)
