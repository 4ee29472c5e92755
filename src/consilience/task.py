"""What is learned: the part of a federation that every learner must agree on, and the shape of one learner's model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Public:
    """The public set: how many samples, and the SHA-256 by which learners know that they mean the same ones."""

    size: int
    mark: str = ""


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
