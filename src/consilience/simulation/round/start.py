"""Before the first round: initial weights, and the channels of every federation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from consilience.learner.initial_state import CommonValues, common_values, first_state
from consilience.simulation.engines.cohort import Settings
from consilience.simulation.federation import Federation
from consilience.simulation.round.run_state import RunState
from consilience.simulation.setup.resistance import robust_channel
from consilience.simulation.setup.subspaces import plan_subspace
from consilience.wire.agreement import merge_channels


def start_learners(run: RunState) -> list[CommonValues]:
    """Write the first state of every learner; return the common values of each federation's moving means."""
    common: list[CommonValues] = [{} for _ in run.setup.federations.seeds]
    for i, learner in enumerate(run.learners):
        plan = run.engine.plans[i]
        members, settings = plan.members, plan.settings_at(0)
        for f in np.unique(members.federation):
            found, place = common_values(learner, run.setup.federations.seeds[f]), run.engine.example.device
            common[f] |= {name: {key: t.to(place) for key, t in tensors.items()} for name, tensors in found.items()}
        first: dict[tuple[int, int], int] = {}  # the row that has a seed and a learner's weights: variants start alike
        for row, (f, number) in enumerate(zip(members.federation, members.learner, strict=True)):
            seed, rows = run.setup.federations.seeds[f], np.array([row])
            like = first.setdefault((seed, int(number)), row)
            if like == row:
                own = _settings_of(settings, row)
                counts = run.setup.data.counts_of(members.samples(row))
                state = first_state(learner, seed, int(number), common[f], counts, own).map(_stacked)
            else:
                state = run.engine.read(i, np.array([like]))
                for owner, values in _settings_of(settings, row).items():
                    for name, value in values.items():
                        state.settings[owner][name].copy_(value)
            run.engine.write(i, rows, state)
    return common


def open_channels(run: RunState, common: list[CommonValues]) -> None:
    """Open the channels of every federation, with the common values they start from."""
    for f, seed in enumerate(run.setup.federations.seeds):
        together = [run.learners[i] for i in run.setup.cohorts.in_federation(f)]
        merged = merge_channels([learner.channels for learner in together])
        channels = {name: robust_channel(channel, run.setup.federations.robustness) for name, channel in merged.items()}
        moving = {name for learner in together for name in learner.moved_before_batches}
        members, partners = run.setup.federations.learners, run.setup.partners
        federation = Federation(seed, channels, members, common[f], run.engine.example, moving, partners)
        federation.use_subspace(plan_subspace(together))
        run.federations.append(federation)


def _settings_of(settings: Settings, row: int) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for (owner, name), values in settings.items():
        found.setdefault(owner, {})[name] = torch.tensor(values[row])
    return found


def _stacked(tensor: Tensor) -> Tensor:
    return tensor[None]
