"""A learner's first state: the one place where first (initial) weights are made, for simulations, members, charters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from consilience.config.schedules import value_at
from consilience.exchanges.base import Exchange, View
from consilience.kinds import group_count
from consilience.learner.learner import Learner
from consilience.learner.residuals import zero_residuals
from consilience.learner.spec import OPTIMIZER
from consilience.learner.state import LearnerState, Tensors
from consilience.randomness import seed_of

CommonValues = dict[str, Tensors]
"""What moving means start from, by exchange and tensor."""


def drawn_state(learner: Learner, seed: int) -> LearnerState:
    """A state with initial weights drawn from this seed, and everything else at zero; it has no exchange state yet."""
    binding, device, dtype = learner.binding, learner.device, learner.dtype
    parameters, buffers = learner.modules.draw(seed)
    flat = binding.parameters.flat(parameters).detach().to(device, dtype)
    return LearnerState(
        parameters=flat,
        buffers=binding.buffers.flat(buffers).to(device, dtype),
        step=torch.zeros((), dtype=torch.int64),
        other_buffers={k: layout.flat(buffers).to(device) for k, layout in binding.other_buffers.items()},
        optimizer={slot: torch.zeros_like(flat) for slot in learner.spec.optimizer.slots},
        residuals=zero_residuals(learner.channels, dtype, device),
        settings=settings_before_training(learner),
    )


def template_state(learner: Learner) -> LearnerState:
    """A whole state such as every learner of this kind has; it is bound to the learner."""
    state = drawn_state(learner, 0)
    learner.bind(state)
    state.exchange_state = exchange_states(learner)
    state.objective_state = objective_state(learner, np.ones(group_count(learner.task)))
    return state


def common_values(learner: Learner, federation_seed: int) -> CommonValues:
    """What the moving means of a federation start from: values of the model drawn from the federation's seed."""
    learner.bind(drawn_state(learner, common_seed(federation_seed)))
    found = {e.name: e.common_values(learner.model_view(e)) for e in learner.exchanges}
    return {name: {k: v.detach().clone() for k, v in values.items()} for name, values in found.items() if values}


def first_state(
    learner: Learner,
    federation_seed: int,
    number: int,
    common: Mapping[str, Mapping[str, Tensor]],
    class_counts: np.ndarray,
    settings: Mapping[str, Tensors] | None = None,
) -> LearnerState:
    """The state, initial weights and all, with which a learner of this number starts; common: see `common_values`.

    class_counts: how many samples of each class it trains on, (classes,).
    """
    alike = learner.role.start == "common"
    seed = common_seed(federation_seed) if alike else learner_seed(federation_seed, number)
    state = drawn_state(learner, seed)
    for owner, values in (settings or {}).items():
        for name, value in values.items():
            state.settings[owner][name].copy_(value)  # what is too large becomes infinite
    learner.bind(state)
    for exchange in learner.exchanges:
        if exchange.start == "common":
            learner.binding.assign(common.get(exchange.name, {}))
    state.exchange_state = exchange_states(learner)
    state.objective_state = objective_state(learner, class_counts)
    return state


def common_seed(federation_seed: int) -> int:
    """The seed of the weights that every member of a federation can make for itself."""
    return seed_of("common weights", federation_seed)


def learner_seed(federation_seed: int, number: int) -> int:
    """The seed of a learner's own initial weights."""
    return seed_of("weights", federation_seed, number)


def exchange_states(learner: Learner) -> dict[str, Tensors]:
    """The exchanges' own states at the start, for the state that is bound."""
    found = {e.name: state_of_exchange(e, learner.model_view(e)) for e in learner.exchanges}
    return {name: state for name, state in found.items() if state}


def state_of_exchange(exchange: Exchange, view: View) -> Tensors:
    """An exchange's own state at the start, for the learner of the view."""
    return {name: value.detach().clone() for name, value in exchange.init_state(view).items()}


def objective_state(learner: Learner, class_counts: np.ndarray) -> Tensors:
    """What the objective remembers of the learner's own data."""
    counts = torch.from_numpy(class_counts).to(learner.device, learner.dtype)
    return {name: value.clone() for name, value in learner.role.objective.init_state(learner.task, counts).items()}


def settings_before_training(learner: Learner) -> dict[str, Tensors]:
    """Settings of which every learner has its own value, as they are for the first learner."""
    spec = learner.spec
    owners = {e.name: e for e in spec.role.exchanges} | {OPTIMIZER: spec.optimizer}
    return {
        owner: {
            name: torch.tensor(value_at(getattr(owners[owner], name), 0), dtype=learner.dtype, device=learner.device)
            for name in names
        }
        for owner, names in spec.varied.items()
    }
