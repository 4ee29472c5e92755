"""The scope of a round: the one place where it is decided whose uploads each learner uses, as a matrix.

Over a relay, learners use the uploads of listed or chosen partners; peer to peer, those of their neighbors in a graph,
mixed with Metropolis-Hastings weights (Xiao and Boyd 2004), of whom messages may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from consilience.channels import Scope
from consilience.config.network import Topology
from consilience.randomness import uniform
from consilience.simulation.round.choose_partners import choose_partners
from consilience.simulation.round.participation import Presence
from consilience.simulation.round.run_state import RunState
from consilience.simulation.setup.topology import build_links


@dataclass(frozen=True, eq=False)
class Links:
    """Messages of a round between neighbors: sent, (learners, learners), and those that arrive at each gossip step.

    Rows are receivers and columns senders.
    """

    sent: np.ndarray
    arrived: tuple[np.ndarray, ...]


def set_scopes(run: RunState, presence: Presence) -> list[Links]:
    """Decide whose uploads learners use in this round, when they have uploaded; peer to peer, return the messages."""
    plan = run.setup.partners
    if not plan.scoped:
        return []
    if not plan.peer_to_peer:
        if plan.chooses(run.round):
            choose_partners(run)
        apply_partners(run)
        return []
    links = [_links_of_round(run, f, presence.exchanges[f]) for f in range(len(run.federations))]
    for federation, each in zip(run.federations, links, strict=True):
        federation.scope = gossip_scope(each)
    return links


def apply_partners(run: RunState) -> None:
    """Let federations use the partners that are listed, or were chosen last; everybody before the first choice."""
    plan = run.setup.partners
    for f, federation in enumerate(run.federations if not plan.peer_to_peer else ()):
        uses = plan.listed if run.chosen is None else run.chosen[f]
        if uses is not None and uses.any():
            federation.scope = Scope(uses.astype(np.float64), uses)


def _links_of_round(run: RunState, federation: int, present: np.ndarray) -> Links:
    """Messages between those neighbors who both take part; each is lost by chance, at each gossip step anew."""
    plan, federations = run.setup.partners, run.setup.federations
    seed, who = federations.seeds[federation], np.arange(federations.learners)
    build = build_links if plan.topology.file else _random_graph  # a file may change while the program runs
    links = build(plan.topology, federations.learners, seed, plan.graph_number(run.round))
    sent = links & present[:, None] & present[None]
    if not plan.lost:
        return Links(sent, (sent,) * plan.steps)
    arrived = []
    for step in range(plan.steps):
        chance = uniform("lost message", seed, run.round, step, who[:, None], who[None])
        arrived.append(sent & (chance >= plan.lost))
    return Links(sent, tuple(arrived))


@lru_cache(maxsize=64)
def _random_graph(topology: Topology, learners: int, seed: int, number: int) -> np.ndarray:
    return build_links(topology, learners, seed, number)


def gossip_scope(links: Links) -> Scope:
    """Who gets how much of whom after all gossip steps, and who sees whose observations after the first."""
    weights = np.eye(len(links.sent))
    for arrived in links.arrived:
        weights = metropolis_weights(links.sent, arrived) @ weights
    return Scope(weights, links.arrived[0] | np.eye(len(links.sent), dtype=bool), gossip=True)


def metropolis_weights(links: np.ndarray, arrived: np.ndarray) -> np.ndarray:
    """1 / (1 + the larger degree of the two) for each message that arrives, and the rest for oneself."""
    degree = links.sum(1)
    weights = np.where(arrived, 1 / (1 + np.maximum(degree[:, None], degree[None])), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights
