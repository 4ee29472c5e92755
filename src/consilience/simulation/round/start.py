"""Before the first round: initial weights, and the channels of every federation."""

from __future__ import annotations

import numpy as np
import torch

from consilience.learner.first_states import FirstStates, Starts
from consilience.learner.initial_state import CommonValues, common_values
from consilience.simulation.engines.cohort import Settings
from consilience.simulation.federation import Federation
from consilience.simulation.round.run_state import RunState
from consilience.simulation.setup.resistance import robust_channel
from consilience.simulation.setup.subspaces import plan_subspace
from consilience.wire.agreement import merge_channels


def start_learners(run: RunState) -> list[CommonValues]:
    """Write the first state of every learner; return the common values of each federation's moving means.

    The engine's states are zeros before, so that optimizers and residuals are left as they are.
    """
    common: list[CommonValues] = [{} for _ in run.setup.federations.seeds]
    for i, learner in enumerate(run.learners):
        members, settings = run.engine.plans[i].members, run.engine.plans[i].settings_at(0)
        for f in np.unique(members.federation):
            found, place = common_values(learner, run.setup.federations.seeds[f]), run.engine.example.device
            common[f] |= {name: {key: t.to(place) for key, t in tensors.items()} for name, tensors in found.items()}
        make, first = FirstStates(learner), _first_alike(run, i)
        different = np.flatnonzero(first == np.arange(len(first)))
        for f in np.unique(members.federation[different]):
            rows = different[members.federation[different] == f]
            for some in np.split(rows, range(make.block, len(rows), make.block)):
                numbers = members.learner[some].tolist()
                counts = np.stack([run.setup.data.counts_of(members.samples(row)) for row in some])
                own = _settings_of(settings, some)
                seed = run.setup.federations.seeds[f]
                run.engine.write(i, some, make.states(Starts(seed, numbers, common[f], counts, own)))
        alike = np.flatnonzero(first != np.arange(len(first)))
        for some in np.split(alike, range(make.block, len(alike), make.block)) if alike.size else ():
            state = run.engine.read(i, first[some])
            for owner, values in _settings_of(settings, some).items():
                for name, value in values.items():
                    state.settings[owner][name].copy_(torch.from_numpy(value))
            run.engine.write(i, some, state)
    return common


def _first_alike(run: RunState, cohort: int) -> np.ndarray:
    """For each row of a cohort the first that has its seed and learner's number: variants start alike."""
    members = run.engine.plans[cohort].members
    first: dict[tuple[int, int], int] = {}
    keys = [(run.setup.federations.seeds[f], int(n)) for f, n in zip(members.federation, members.learner, strict=True)]
    return np.array([first.setdefault(key, row) for row, key in enumerate(keys)])


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


def _settings_of(settings: Settings, rows: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Some rows' own settings, by owner and field, (rows,) each."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for (owner, name), values in settings.items():
        found.setdefault(owner, {})[name] = values[rows]
    return found
