"""Samples with a privacy budget of their own: their epsilons, and how often they are drawn to stay within them.

A sample whose epsilon is smaller than the run's is drawn for every private step, and enters every noised release, with
a smaller probability than the others (personalized sampling, Jorgensen et al. 2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.kinds import kind_of
from consilience.learner.private_uploads import LearnerPrivacy
from consilience.method import Method, Role
from consilience.privacy.plan import PrivacyPlan
from consilience.simulation.engines.cohort import Members
from consilience.simulation.setup.assign_data import AssignedData, class_number
from consilience.simulation.setup.participants import Participant
from consilience.simulation.setup.privacy import uploaded

_MOST_LEVELS = 16


def sample_epsilons(data: Dataset, role: Role, samples: np.ndarray) -> np.ndarray:
    """The epsilon of each of these samples, (samples,): the smallest that its class or its data set gives it.

    It is infinite where a sample has none of its own.
    """
    found = np.full(len(samples), np.inf) if data.sample_epsilons is None else data.sample_epsilons[samples]
    for name, epsilon in role.sample_epsilons:
        group = class_number(data, name, "sample_epsilons")
        of_class = kind_of(data.target).in_groups(data.target, data.targets[samples], [group])
        found = np.where(of_class, np.minimum(found, epsilon), found)
    return found


def with_draw_shares(
    members: Members,
    participants: Sequence[Participant],
    data: Dataset,
    plan: PrivacyPlan | None,
    privacy: LearnerPrivacy | None,
) -> Members:
    """The members of a cohort whose samples with an epsilon of their own are drawn less often; privacy: of the cohort.

    members: without them. participants: of each row.
    """
    if plan is None or privacy is None:
        return members
    epsilons, shares = np.full(len(members.index), np.inf), np.ones(len(members.index))
    for row, participant in enumerate(participants):
        mine = slice(members.start[row], members.stop[row])
        epsilons[mine] = sample_epsilons(data, participant.role, members.samples(row))
        steps = privacy.steps.get(int(members.sizes[row]))
        _check_levels(participant.learner, epsilons[mine], plan.epsilon)
        for epsilon in np.unique(epsilons[mine]):
            shares[mine][epsilons[mine] == epsilon] = plan.share_of(float(epsilon), steps)
    return members.with_draw_shares(epsilons, shares) if (shares < 1).any() else members


def _check_levels(who: int, epsilons: np.ndarray, run: float) -> None:
    """Refuse very many different epsilons: each takes the time of an accounting of its own."""
    if (count := len(np.unique(epsilons[epsilons < run]))) > _MOST_LEVELS:
        raise ConfigurationError(
            f"learner {who} has samples with {count} different epsilons below {run:g}, and each is accounted by "
            f"itself; use at most {_MOST_LEVELS}: round them down to a few levels"
        )


def check_sample_epsilons(
    config: Config, method: Method, participants: Sequence[Participant], data: AssignedData
) -> None:
    """Refuse samples with a budget of their own where uploads have no noise, or noise for all samples at once."""
    asked, run = config.privacy.private, config.privacy.epsilon or np.inf
    if method.pooled or asked in ("training", "fixed-encoder"):
        return
    shares = {p.learner for p in participants if uploaded(p.role) or p.role.turns is not None} | {method.host}
    for participant in participants:
        if participant.learner not in shares or participant.role.data != "own":
            continue
        samples = np.concatenate([parts[participant.learner] for parts in data.parts])
        least = sample_epsilons(data.train, participant.role, samples).min(initial=np.inf)
        if least < run:
            raise ConfigurationError(
                f"learner {participant.learner} has samples with an epsilon of {least:g} of their own, and private is "
                f"{asked!r}: {_WHY[asked]}; use private='training', or 'fixed-encoder' with a frozen encoder"
                + (f", or epsilon={least:g} for everybody" if asked == "upload" and least > 0 else "")
            )


_WHY = {
    "none": "what is uploaded has no noise, and spends any budget",
    "upload": "the noise of an upload is for all samples of a learner at once, and gives none of them a budget of its "
    "own below the run's",
}
