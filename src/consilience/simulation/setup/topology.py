"""Graphs of learners that exchange peer to peer: who has a link to whom."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np

from consilience.config.network import Topology
from consilience.errors import ConfigurationError
from consilience.randomness import seed_of
from consilience.simulation.setup.pairs import read_pairs

_TRIES = 100  # random graphs until one is connected


def build_links(topology: Topology, learners: int, seed: int, turn: int = 0) -> np.ndarray:
    """Which learners have a link, (learners, learners), symmetric and without links to oneself.

    seed: of the federation; turn: which of its random graphs. A graph that is not connected is refused.
    """
    links = np.zeros((learners, learners), dtype=bool)
    for a, b in _connected(topology, learners, seed, turn).edges:
        links[a, b] = links[b, a] = True
    return links


def _connected(topology: Topology, learners: int, seed: int, turn: int) -> nx.Graph:
    for attempt in range(_TRIES if topology.random else 1):
        graph = _graph(topology, learners, seed_of("topology", seed, turn, attempt) % 2**32)
        graph.remove_edges_from(list(nx.selfloop_edges(graph)))
        if nx.is_connected(graph):
            return graph
    apart = min(nx.connected_components(graph), key=lambda some: (len(some), min(some)))
    what = topology.file or topology.kind
    raise ConfigurationError(
        f"topology {what!r} is not connected: nothing leads from learner {min(apart)} to all others "
        f"({len(apart)} of {learners} are apart); add links, or use a graph of higher degree"
    )


def _graph(topology: Topology, learners: int, seed: int) -> nx.Graph:
    _check_size(topology, learners)
    if topology.kind == "complete":
        return nx.complete_graph(learners)
    if topology.kind == "ring":
        return nx.cycle_graph(learners)
    if topology.kind == "grid":
        graph = nx.grid_2d_graph(*_grid_shape(learners))
        return nx.convert_node_labels_to_integers(graph, ordering="sorted")
    if topology.kind == "regular":
        return nx.random_regular_graph(topology.degree, learners, seed=seed)
    if topology.kind == "small-world":
        return nx.watts_strogatz_graph(learners, topology.degree, topology.rewired, seed=seed)
    graph = nx.empty_graph(learners)
    graph.add_edges_from(read_pairs("topology", topology.file, learners))
    return graph


def _check_size(topology: Topology, learners: int) -> None:
    kind, degree = topology.kind, topology.degree
    if learners < 2:
        raise ConfigurationError(f"topology {kind!r} with {learners} learner: nobody to exchange with; use 2 or more")
    if topology.random and degree >= learners:
        raise ConfigurationError(
            f"topology {kind}({degree}): a learner has at most {learners - 1} neighbors among {learners} learners; "
            f"choose a smaller degree, or 'complete'"
        )
    if kind == "regular" and learners * degree % 2:
        raise ConfigurationError(
            f"topology regular({degree}) with {learners} learners: the number of learners times the degree must be "
            f"even; change one of them by 1"
        )
    if kind == "small-world" and degree % 2:
        raise ConfigurationError(
            f"topology small-world({degree}, ...): the degree must be even, half of it to each side; use {degree + 1}"
        )
    if kind == "grid" and min(_grid_shape(learners)) == 1 and learners > 3:
        raise ConfigurationError(
            f"topology 'grid' with {learners} learners: they form no rows and columns; use a number of learners that "
            f"is a product, such as {learners + 1}"
        )


def _grid_shape(learners: int) -> tuple[int, int]:
    """Rows and columns of a grid, as near to a square as possible."""
    rows = max(n for n in range(1, math.isqrt(learners) + 1) if learners % n == 0)
    return rows, learners // rows
