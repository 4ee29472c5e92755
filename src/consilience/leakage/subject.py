"""One learner under examination: samples it trained on, test samples, and what layers of its model make of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.data import Dataset
from consilience.errors import ConfigurationError, DataError, UnknownName
from consilience.exchanges.base import CUT
from consilience.simulation.records.export import SavedRun

LEAST = 4
"""Samples of which a distance correlation can be corrected."""
OWN = 2000
"""Training samples of a learner that are looked at, at most: its means are then of those."""
AUXILIARY = 2000
"""Test samples that an attacker has unless more are given to it, at most: else half of them."""
_SMALLEST = 8  # pixels a side of an image that is rebuilt
FEATURES = "features"


@dataclass(frozen=True, eq=False)
class Side:
    """Some samples: as the model is given them, as they are compared, their classes, and outputs by module."""

    raw: Tensor  # (n, ...) inputs; characters one-hot
    images: Tensor | None  # (n, channels, height, width) in [0, 1]
    targets: np.ndarray  # (n,)
    outputs: Mapping[str, Tensor]  # (n, ...) each

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class Subject:
    """A learner: its own training samples, test samples, and the places among these of those an attacker has.

    shared: which of its own may enter what it puts up, (own,).
    """

    who: int
    own: Side
    shared: np.ndarray
    tests: Side
    auxiliary: np.ndarray


def chosen(kept: SavedRun, learners: int) -> list[int]:
    """The first so many learners that have enough samples to say something of."""
    enough = [who for who in range(kept.learners) if len(kept.samples(who)[1]) >= LEAST][:learners]
    if not enough:
        raise DataError(f"no learner of the run has {LEAST} training samples, and of fewer nothing can be said")
    return enough


def usual_layers(kept: SavedRun, who: Sequence[int]) -> tuple[str, ...]:
    """What is looked at where nobody names a layer: where models are cut, else their features."""
    return (CUT,) if all(kept.learner(each).model.cut for each in who) else (FEATURES,)


def modules_of(kept: SavedRun, who: int, layers: Sequence[str]) -> dict[str, str]:
    """The modules that names of layers stand for in a learner's model: "cut" is where it is cut, if it is."""
    learner = kept.learner(who)
    cut, called = learner.model.cut, learner.task.model
    known = [name for name, _ in learner.model.named_modules(remove_duplicate=False) if name]
    if CUT in layers and not cut and CUT not in known:
        raise ConfigurationError(
            f"{called}, the model of learner {who}, is not cut; name a layer of it: {', '.join(known)}"
        )
    for layer in layers:
        if layer not in known and not (layer == CUT and cut):
            raise UnknownName("layer", layer, [*known, *([CUT] if cut else [])], of=called)
    return {layer: cut if layer == CUT and cut else layer for layer in dict.fromkeys(layers)}


def subject(kept: SavedRun, who: int, modules: Sequence[str], auxiliary: int | None, device: str) -> Subject:
    """A learner with all that is looked at, on the device named."""
    inputs, targets = kept.samples(who)
    test_inputs, test_targets = kept.tests(who)
    has = _attacker_s(auxiliary, len(test_targets))
    mine, theirs = evenly(len(targets), OWN), evenly(len(test_targets), max(2 * AUXILIARY, has))
    inputs, targets, test_inputs, test_targets = inputs[mine], targets[mine], test_inputs[theirs], test_targets[theirs]
    wanted = list(dict.fromkeys([*modules, FEATURES]))
    outputs = kept.outputs(who, np.concatenate([inputs, test_inputs]), wanted, device)
    known = {name: torch.from_numpy(seen).to(device) for name, seen in outputs.items()}
    n = len(targets)
    raw, images = _raw(kept.data, np.concatenate([inputs, test_inputs])), None
    if can_be_rebuilt(kept.data):
        images = _pixels(kept.data, raw).to(device)
    sides = [
        Side(
            torch.from_numpy(raw[part]).to(device),
            None if images is None else images[part],
            labels,
            {name: seen[part] for name, seen in known.items()},
        )
        for part, labels in ((slice(None, n), targets), (slice(n, None), test_targets))
    ]
    return Subject(who, sides[0], kept.may_share(who)[mine], sides[1], evenly(len(test_targets), has))


def can_be_rebuilt(data: Dataset) -> bool:
    """Whether samples are images that an attacker would rebuild and a person could look at."""
    return len(data.shape) == 3 and data.shape[0] in (1, 3) and min(data.shape[1:]) >= _SMALLEST


def evenly(count: int, most: int) -> np.ndarray:
    """Places of at most so many of `count` things, evenly taken."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def _attacker_s(asked: int | None, tests: int) -> int:
    """How many test samples the attacker has."""
    least = 2 * LEAST
    if tests < least:
        raise DataError(f"there are {tests} test samples, and an attacker needs half of {least} or more")
    if asked is None:
        return min(tests // 2, AUXILIARY)
    if not LEAST <= asked <= tests:
        raise ConfigurationError(f"auxiliary is {asked}; there are {tests} test samples: take {LEAST} to {tests}")
    return asked


def _raw(data: Dataset, inputs: np.ndarray) -> np.ndarray:
    """Inputs as distances between them mean something: characters as one of so many, all else as it is."""
    if not data.alphabet:
        return inputs
    return np.eye(len(data.alphabet), dtype=np.float32)[inputs.astype(np.int64)]  # (n, length, characters)


def _pixels(data: Dataset, inputs: np.ndarray) -> Tensor:
    """Images as they were before they were scaled; those beyond 0 to 1 are brought there."""
    pixels = inputs * data.std + data.mean
    low, high = float(pixels.min()), float(pixels.max())
    slack = 1e-4  # of rounding
    if low < -slack or high > 1 + slack:
        pixels = (pixels - low) / max(high - low, slack)
    return torch.from_numpy(np.clip(pixels, 0, 1).astype(np.float32))
