"""How methods are named in sentences, and which color, dashes and shape each has in every chart.

A look is a number: charts give it a color of the theme, dashes and a shape. Numbers of built-in methods are fixed, so
that a method looks the same in every report; other methods take a free number that depends only on their name.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

_LOOKS = (
    "consilience",
    "fedavg",
    "representation-sharing",
    "federated-distillation",
    "self-distillation",
    "fedavg-1bit",
    "independent",
    "centralized",
    "fedprox",
    "fedproto",
    "two-stage",
    "flesd",
    "flesd-cc",
    "split-learning",
    "cluster-sharing",
)
"""Built-in methods by look; the first eight, which are compared by default, have different colors."""
COLORS = 8
"""Colors of methods in a theme; repeated colors have other dashes and shapes."""
_COUNT = 40  # looks that differ in color, dashes or shape
_SPOKEN = {
    "consilience": "the default method",
    "independent": "learning alone",
    "centralized": "one model on all data",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedproto": "FedProto",
}


def spoken_name(label: str) -> str:
    """The name of a method in a sentence; its settings follow: "FedAvg every=2"."""
    method, _, settings = label.partition(" ")
    return f"{_SPOKEN.get(method, method)} {settings}".rstrip()


def look_order(labels: Sequence[str]) -> list[str]:
    """The labels in the order of their looks: the place of a label is its look. Looks of nobody are blank names.

    The first label of a built-in method, with settings or without, has the method's look.
    """
    slots: dict[int, str] = {}
    rest = []
    for label in dict.fromkeys(labels):
        method = label.split(" ")[0].split(":")[0]
        look = _LOOKS.index(method) if method in _LOOKS else None
        if look is None or look in slots:
            rest.append(label)
        else:
            slots[look] = label
    for label in rest:
        slots[_free(label, slots)] = label
    return [slots.get(i, f"({i})") for i in range(max(slots, default=-1) + 1)]


def _free(label: str, slots: dict[int, str]) -> int:
    """A free look in a color that the fewest have; among these the label alone decides."""
    start = zlib.crc32(label.encode()) % _COUNT
    turned = [(start + i) % _COUNT for i in range(_COUNT)]
    free = [look for look in turned if look not in slots] or [max(slots) + 1]
    return min(free, key=lambda look: sum(taken % COLORS == look % COLORS for taken in slots))
