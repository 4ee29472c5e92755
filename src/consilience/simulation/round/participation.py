"""Who takes part in a round, decided before it by hashing and by plan alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.randomness import uniform
from consilience.simulation.setup.federations import Federations, ParticipationGroup


@dataclass(frozen=True)
class Presence:
    """Who trains and who can be reached in a round, (federations, learners) each."""

    participates: NDArray[np.bool_]
    online: NDArray[np.bool_]

    @property
    def exchanges(self) -> NDArray[np.bool_]:
        """Who both trains and can be reached."""
        return self.participates & self.online


def draw_presence(federations: Federations, host: int | None, round_: int) -> Presence:
    """Draw who takes part in a round of every federation: a fixed number of learners, and each is offline by chance.

    Learners that cannot be reached in this round by plan are offline too. host: a learner that takes part in every
    round, beside those who are drawn.
    """
    seed, who = np.array(federations.seeds)[:, None], np.arange(federations.learners)
    chance = uniform("participation", seed, round_, who)
    if host is not None:
        chance[:, host] = -1.0  # before all others
    joined = federations.joins <= round_
    grouped = [group.learners for group in federations.groups]
    others = np.setdiff1d(who, np.concatenate(grouped)) if grouped else who
    participates = np.zeros(federations.shape, dtype=bool)
    for group in (ParticipationGroup(others, federations.participation), *federations.groups):
        present = group.learners[joined[group.learners]]
        count = group.participants(len(present), host in present)
        first = chance[:, present].argsort(axis=1, kind="stable")[:, :count]
        np.put_along_axis(participates, present[first], True, axis=1)
    online = uniform("offline", seed, round_, who) >= federations.offline
    return Presence(participates, online & np.array(federations.reachable.learners(federations.learners, round_)))
