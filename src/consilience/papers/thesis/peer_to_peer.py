"""Accuracy against connectivity: representation sharing over a relay, and peer to peer over graphs of learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.formats import both_ways, format_accuracy, format_difference
from consilience.papers.thesis.published import TASKS
from consilience.presentation.tables import plural

IMAGES, LEARNERS = 120, 32
"""Images of each learner, and how many there are."""
_SEEDS = 3
_SHARING: dict[str, Any] = {"name": "representation-sharing"}
_SEEN: dict[str, Any] = {"name": "representation-sharing", "means": "seen", "down": 4}
RELAY = "relay"
_NETWORKS: dict[str, dict[str, Any]] = {
    "alone": {"method": {"name": "independent"}},
    "alone, own class means": {"method": {"name": "self-distillation"}},
    RELAY: {},
    "complete": {"topology": "complete"},
    "small world, 4 links": {"topology": "small-world(4, 0.1)"},
    "4-regular": {"topology": "regular(4)"},
    "grid": {"topology": "grid"},
    "ring": {"topology": "ring"},
    "4-regular, new every round": {"topology": "regular(4)", "topology_every": 1},
    "4-regular, 4 gossip steps": {"topology": "regular(4)", "gossip_steps": 4},
    "4-regular, 10 % lost": {"topology": "regular(4)", "lost": 0.1},
    "4-regular, 30 % lost": {"topology": "regular(4)", "lost": 0.3},
    "ring, 30 % lost": {"topology": "ring", "lost": 0.3},
    "relay, mean of observations seen": {"method": _SEEN},
    "4-regular, mean of observations seen": {"topology": "regular(4)", "method": _SEEN},
}
"""Each way to exchange, and its settings."""
_DIGITS: dict[str, Any] = {"data": "digits", "model": "mlp", "rounds": 20, "train": 60 * 16, "learners": 16}


def _cells(scale: Scale) -> list[Cell]:
    """Every way to exchange; the quick version: digits, 16 learners with 60 images, twenty rounds."""
    mnist = TASKS["MNIST"] | {"train": IMAGES * LEARNERS, "learners": LEARNERS}
    settings = {**(_DIGITS if scale.quick else mnist), **scale.settings(_SEEDS)}
    settings |= {"eval_every": settings["rounds"], "method": _SHARING}
    return [Cell({"network": name}, settings | own) for name, own in _NETWORKS.items()]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Accuracy and bytes of each way to exchange, and its difference to the relay."""
    summary, found = outcomes[0].summary, {o.labels["network"]: o for o in outcomes}
    text = (
        f"{summary['data']}, {summary['model']}, {summary['learners']} learners, iid, {summary['rounds']} rounds, "
        f"representation sharing, {plural(summary['seeds'], 'seed')}: accuracy in % on the test set after the last "
        f"round; the difference to the relay in points, paired by seed, with its 95 % interval; bytes of one learner "
        f"and round, upload and download together, every link's message counted."
    )
    table = [_line(name, outcome, found.get(RELAY)) for name, outcome in found.items()]
    return [ResultSection("Accuracy by connectivity", text, table, name="peer-to-peer")]


def _line(name: str, outcome: Outcome, relay: Outcome | None) -> dict[str, Any]:
    compared = relay is not None and name != RELAY
    return {
        "network": name,
        "accuracy": format_accuracy(outcome),
        "against the relay": format_difference(outcome, relay) if compared and relay is not None else None,
        "bytes": round(both_ways(outcome.summary["bytes"])),
    }


PEER_TO_PEER = Reproduction(
    "thesis-p2p", "Representation sharing over a relay and peer to peer, by connectivity", _cells, _sections
)
