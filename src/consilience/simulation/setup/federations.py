"""The federations of a run: their seeds, their learners, and when and how often learners take part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from consilience.config.attacks import Attack
from consilience.config.config import Config
from consilience.config.reachable import ALL, Reachable, parse_reachable
from consilience.errors import ConfigurationError
from consilience.method import Method
from consilience.simulation.setup.resistance import attacks_of
from consilience.wire.robustness import PLAIN, Robustness


@dataclass(frozen=True)
class ParticipationGroup:
    """Learners among whom participants of a round are drawn, and what share of them takes part."""

    learners: np.ndarray
    share: float

    def participants(self, present: int, host: bool) -> int:
        """How many of those present take part; a host among them takes part in addition."""
        return int(host) + max(1, round(self.share * (present - host)))


@dataclass(frozen=True)
class Federations:
    """Federations that run side by side, one for each variant and seed; all have the same number of learners."""

    seeds: tuple[int, ...]  # of each federation: the seeds of the first variant, then of the next
    learners: int  # in each federation
    participation: float  # share of learners that take part in a round
    offline: float  # chance that a learner cannot be reached in a round
    joins: np.ndarray  # (learners,) the round in which each learner joins
    groups: tuple[ParticipationGroup, ...]  # learners with a participation of their own
    robustness: Robustness = PLAIN  # of all means
    attacks: Mapping[int, Attack] = field(default_factory=dict)  # learners that misbehave in what they upload
    reachable: Reachable = ALL  # who can be reached in a round, by plan

    @property
    def count(self) -> int:
        """How many federations run side by side."""
        return len(self.seeds)

    @property
    def shape(self) -> tuple[int, int]:
        """(federations, learners): the shape of what every learner has one of."""
        return len(self.seeds), self.learners

    def joined(self, round_: int) -> np.ndarray:
        """Which learners have joined by a round, (learners,); round 0 counts as round 1."""
        joined: np.ndarray = self.joins <= max(round_, 1)
        return joined


def build_federations(config: Config, method: Method, learners: int, variants: int) -> Federations:
    """One federation for each variant and seed; a pooled method has one learner, who is always there."""
    seeds = tuple(range(config.federation.seed, config.federation.seed + config.federation.seeds)) * variants
    joins = np.ones(1, dtype=np.int64) if method.pooled else _joins(config, method)
    groups = () if method.pooled else _participation_groups(config)
    asked, attacks = config.federation, attacks_of(config, method)
    reachable = ALL if method.pooled else parse_reachable(asked.reachable)
    if reachable.count > learners:
        raise ConfigurationError(
            f"reachable is {asked.reachable!r}, and there are {learners} learners; name at most {learners}"
        )
    return Federations(
        seeds, learners, asked.participation, asked.offline, joins, groups, asked.robustness, attacks, reachable
    )


def _joins(config: Config, method: Method) -> np.ndarray:
    """The round in which each learner joins, (learners,)."""
    joins = np.ones(config.federation.learners, dtype=np.int64)
    for who, (name, group) in config.groups_by_learner().items():
        joins[who] = group.joins
        if who == method.host and group.joins > 1:
            raise ConfigurationError(
                f"groups.{name}.joins is {group.joins}, and learner {who} has the public set of method "
                f"{method.name!r}, which all learners use from the first round; set joins to 1"
            )
    return joins


def _participation_groups(config: Config) -> tuple[ParticipationGroup, ...]:
    """The groups with a participation of their own."""
    return tuple(
        ParticipationGroup(np.array(group.numbers(name, config.federation.learners)), group.participation)
        for name, group in config.groups.items()
        if group.participation is not None
    )
