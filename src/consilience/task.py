"""The task: what every learner of a federation must agree on, and the shapes of one learner's model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

PARTS = DEVICE, SERVER = "device", "server"
"""The parts of a split model: the private one, which ends with the cut layer, and the one that reads its output."""
AnswerKind = Literal["common", "own"]
"""A learner's answer: its model's, for everybody's data, or the one for data like its own."""
TRAINED = "trained"
"""The part of a model that is trained: everything that is not frozen."""


TaskKind = Literal["single-label", "multi-label", "regression"]
"""One class per sample, a set of labels per sample, or a number per sample."""


def names_in_part(part: str, names: Iterable[str]) -> list[str]:
    """The names in a part: a module's name, a glob, or "*" for all."""
    return [n for n in names if n == part or n.startswith(f"{part}.") or fnmatchcase(n, part)]


@dataclass(frozen=True)
class Public:
    """The public set: its size, and its SHA-256, by which learners check that they have the same one."""

    size: int
    fingerprint: str = ""


@dataclass(frozen=True)
class Target:
    """What is predicted of a sample; `consilience.kinds` says what follows from the kind.

    Learners of a federation have the same one. edges: of a regression, the standardized values between the bins of the
    target, ascending. mean, std: of a regression, how targets were standardized: the user's number is
    target x std + mean.
    """

    kind: TaskKind = "single-label"
    edges: tuple[float, ...] = ()
    mean: float = 0.0
    std: float = 1.0


SINGLE_LABEL = Target()
"""One class per sample."""


@dataclass(frozen=True)
class Task:
    """Outputs of the model (classes C), feature width d', input shape, what is predicted, and the model's shapes.

    The shapes include those of its frozen part.

    Tasks of learners with different architectures differ in `parameters` and `buffers` only: whether they can work
    together depends on the channels of their exchanges.
    """

    classes: int
    """The model's outputs: one for each class or label, or one number."""
    width: int
    inputs: tuple[int, ...] = ()
    bound: float = math.inf
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    model: str = "model"
    scaling: tuple[float, float] = (0.0, 1.0)
    """Mean and standard deviation by which inputs were scaled: pixels are input x std + mean, in [0, 1]."""
    public: Public | None = None
    symbols: int = 0
    """The size of the alphabet if inputs are codes of characters, else 0."""
    cut: tuple[int, ...] | None = None
    """Of a split model: the shape of the cut layer's output for one sample."""
    parts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of a split model: the names of the parameters and buffers of each part."""
    target: Target = SINGLE_LABEL

    frozen: frozenset[str] = frozenset()
    """Names of parameters and buffers that are the same for all learners: nothing changes them, and none travels."""
    network_names: Mapping[str, str] = field(default_factory=dict)
    """Of a network that was split: what its parameters and buffers are called in it, by their names here."""

    def covered(self, part: str, names: Iterable[str]) -> list[str]:
        """The names in a part, without the frozen ones.

        A part is "trained" for all of them, one of the two parts of a split model, a module's name, or a glob. Of a
        network that was split, names in the network count where the part is no name in the split model; of one that
        cannot be divided, only these.
        """
        own, trained = self.parts.get(part), [n for n in names if n not in self.frozen]
        if part == TRAINED:
            return trained
        if own is not None:
            return [n for n in trained if n in own]
        every = (*self.parameters, *self.buffers)
        divided = any(not name.startswith("features.") for name in every)
        if not self.network_names or (divided and names_in_part(part, every)):
            return names_in_part(part, trained)
        return [n for n in trained if names_in_part(part, [self.network_names.get(n, n)])]
