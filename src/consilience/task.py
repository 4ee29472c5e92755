"""What is learned: the part of a federation that every learner must agree on, and the shape of one learner's model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

PARTS = DEVICE, SERVER = "device", "server"
"""Of a model in two parts: what is private and ends in the cut layer, and what reads that layer's output."""


def names_in_part(part: str, names: Iterable[str]) -> list[str]:
    """The names a part covers: a module's name, a glob, or "*" for all."""
    return [n for n in names if n == part or n.startswith(f"{part}.") or fnmatchcase(n, part)]


@dataclass(frozen=True)
class Public:
    """The public set: how many samples, and the SHA-256 by which learners know that they mean the same ones."""

    size: int
    fingerprint: str = ""


@dataclass(frozen=True)
class Task:
    """Classes C, feature width d', input shape; and the shapes of the model that works on it.

    Learners of different architectures have tasks that differ in `parameters` and `buffers` alone: whether they can
    work together is decided by the channels their exchanges ask for.
    """

    classes: int
    width: int
    inputs: tuple[int, ...] = ()
    bound: float = math.inf
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    model: str = "model"
    scaling: tuple[float, float] = (0.0, 1.0)
    """Mean and standard deviation that inputs were scaled with: pixels are input x std + mean, in [0, 1]."""
    public: Public | None = None
    symbols: int = 0
    """How many characters there are, where inputs are codes of characters."""
    cut: tuple[int, ...] | None = None
    """Of a model in two parts: the shape of what the one hands to the other, for a sample."""
    parts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of a model in two parts: the names of the parameters and buffers of each."""

    def covered(self, part: str, names: Iterable[str]) -> list[str]:
        """Those of the names that a part covers: one of a cut model's two, a module's name, a glob, or "*" for all."""
        own = self.parts.get(part)
        return names_in_part(part, names) if own is None else [n for n in names if n in own]
