"""Whose uploads learners use, decided before the first round; what does not fit the method is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from consilience.config.config import Config
from consilience.config.network import Choose, Partners, Topology
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Exchange
from consilience.learner.learner import Learner
from consilience.method import Method
from consilience.simulation.setup.pairs import read_pairs
from consilience.wire import schema
from consilience.wire.robustness import Robustness


@dataclass(frozen=True, eq=False)
class PartnerPlan:
    """Whose uploads learners use in each round, as far as it is known before the first.

    listed: (learners, learners), whose uploads each learner uses, where lists say so. compared: the channel of class
    means by which partners are chosen. groups: (learners,) the group that each learner is said to belong to, -1 where
    there is only one.
    """

    partners: Partners = field(default_factory=Partners)
    first: int = 1  # the round whose uploads partners are first chosen by
    every: int = 0
    choose: Choose = "random"  # which observations a learner gets
    topology: Topology = field(default_factory=Topology)
    topology_every: int = 0
    steps: int = 1
    lost: float = 0.0
    listed: np.ndarray | None = None
    compared: str = ""
    groups: np.ndarray | None = None

    @property
    def peer_to_peer(self) -> bool:
        """Whether messages travel over the links of a graph."""
        return self.topology.kind != "relay"

    @property
    def scoped(self) -> bool:
        """Whether learners use the uploads of some others only."""
        return self.peer_to_peer or self.partners.kind != "everybody"

    def chooses(self, round_: int) -> bool:
        """Whether partners are chosen by the uploads of a round."""
        if not self.partners.chosen or round_ < self.first:
            return False
        return round_ == self.first or bool(self.every and (round_ - self.first) % self.every == 0)

    def graph_number(self, round_: int) -> int:
        """Which of the random graphs a round has."""
        return max(round_ - 1, 0) // self.topology_every if self.topology_every else 0


EVERYBODY = PartnerPlan()
"""Everybody uses everybody's uploads, over a relay."""


def plan_partners(config: Config, method: Method) -> PartnerPlan:
    """The plan that a configuration asks for; a pooled method has one learner and no uploads."""
    asked, learners = config.network, config.federation.learners
    if method.pooled or not method.exchanges:
        return EVERYBODY
    plan = PartnerPlan(
        asked.plan,
        asked.partners_from,
        asked.partners_every,
        asked.choose,
        asked.graph,
        asked.topology_every,
        asked.gossip_steps,
        asked.lost,
        _listed(config) if asked.plan.kind == "listed" else None,
        _compared(asked.plan, method),
        _groups(config),
    )
    _check_numbers(plan, config, learners)
    return plan


def _check_numbers(plan: PartnerPlan, config: Config, learners: int) -> None:
    asked = config.network
    if plan.partners.count >= learners:
        raise ConfigurationError(
            f"partners is {asked.partners!r}, and there are {learners} learners, {learners - 1} of them others; "
            f"choose at most {max(learners - 2, 1)}, or 'everybody'"
        )
    if plan.partners.chosen and plan.first > config.training.rounds:
        raise ConfigurationError(
            f"partners_from is {plan.first}, and the run has {config.training.rounds} rounds: partners would never be "
            f"chosen; use an earlier round"
        )
    if plan.partners.kind == "useful" and not config.evaluation.validation:
        raise ConfigurationError(
            f"partners is {asked.partners!r}, which is decided by validation samples, and validation is 0; set "
            f"validation, such as 0.2, or use similar(K)"
        )
    if plan.choose == "useful" and not config.evaluation.validation:
        raise ConfigurationError(
            "choose is 'useful', which is decided by validation samples, and validation is 0; set validation, such as "
            "0.2, or use choose='relevant'"
        )
    listing = [name for name, group in config.groups.items() if group.partners is not None]
    if listing and (plan.partners.kind != "listed" or plan.partners.file):
        raise ConfigurationError(
            f"groups.{listing[0]}.partners is a list, and partners is {asked.partners!r}; set partners = 'listed', or "
            f"leave the list out"
        )


def _listed(config: Config) -> np.ndarray:
    """Whose uploads each learner uses by the lists of a file or of groups; always its own."""
    learners = config.federation.learners
    found = np.eye(learners, dtype=bool)
    if file := config.network.plan.file:
        pairs = read_pairs("partners", file, learners)
    else:
        pairs = [
            (who, partner)
            for who, (name, group) in config.groups_by_learner().items()
            for partner in group.partner_numbers(name, learners) or ()
        ]
    for who, partner in pairs:
        found[who, partner] = True
    alone = sorted(set(range(learners)) - {who for who, _ in pairs})
    if alone:
        raise ConfigurationError(
            f"partners is {config.network.partners!r}, and no list names partners of learner {alone[0]}; give its "
            f"group partners = [...], or add lines to the file"
        )
    return found


def _compared(partners: Partners, method: Method) -> str:
    """The exchange whose class means tell which partners to choose; empty where none are chosen."""
    if not partners.chosen:
        return ""
    of = ("features",) if partners.kind == "useful" else ("features", "logits")
    for exchange in method.exchanges:
        if exchange.means_of in of and exchange.scope == "everybody":
            return exchange.name
    what = "class means of features" if partners.kind == "useful" else "class means"
    raise ConfigurationError(
        f"partners {partners.kind}({partners.count}) are chosen by {what} that learners upload, and method "
        f"{method.name!r} has none; use a method with prototypes, such as representation-sharing, fedproto or "
        f"consilience, or list partners"
    )


def _groups(config: Config) -> np.ndarray | None:
    """The number of each learner's group, (learners,); None where all are in one."""
    found = config.learners_by_group()
    groups = np.full(config.federation.learners, -1)
    for number, members in enumerate(found.values()):
        groups[members] = number
    return groups if found else None


def check_exchanges(plan: PartnerPlan, learners: Collection[Learner], robustness: Robustness) -> None:
    """Refuse exchanges, encodings and means that cannot be of some learners only."""
    sent = {e.name: e for learner in learners for e in learner.exchanges if e.scope == "everybody"}
    channels = {name: channel for learner in learners for name, channel in learner.channels.items() if name in sent}
    if plan.choose != "random" and not any(isinstance(channel, schema.Pool) for channel in channels.values()):
        raise ConfigurationError(
            f"choose is {plan.choose!r}, which is for observations, and the method shares {', '.join(sent)}; leave it "
            f"out, or use representation-sharing"
        )
    if not plan.scoped or not sent:
        return
    _check_kinds(plan, sent.values())
    if robustness.aggregation != "mean" or robustness.clips:
        raise ConfigurationError(
            f"aggregation {robustness.label!r} with clip_norm or clip_ratio is for means over everybody, and here "
            f"{_setting(plan)}; leave them out, or use everybody's uploads over a relay"
        )
    for name, channel in channels.items():
        if channel.moves and plan.peer_to_peer:
            _check_exact(name, channel)


def _check_kinds(plan: PartnerPlan, exchanges: Iterable[Exchange]) -> None:
    for exchange in exchanges:
        if not exchange.allows_partners:
            raise ConfigurationError(
                f"{_setting(plan)}, and exchange {exchange.name!r} ({type(exchange).__name__}) needs the uploads of "
                f"all learners; prototypes, observations, logits and weights can be exchanged with some"
            )


def _check_exact(name: str, channel: schema.Channel) -> None:
    for key, tensor in channel.tensors.items():
        if tensor.up.lossy or tensor.down.lossy:
            raise ConfigurationError(
                f"{name}: peer to peer, neighbors send their values themselves and not changes of common ones, so "
                f"{key!r} cannot be sent in {tensor.up.name if tensor.up.lossy else tensor.down.name}; use float32 "
                f"both ways, or a relay"
            )


def _setting(plan: PartnerPlan) -> str:
    """What was asked for, for messages."""
    if plan.peer_to_peer:
        return f"topology is {plan.topology.file or plan.topology.kind!r}"
    return f"partners is {plan.partners.file or plan.partners.kind!r}"
