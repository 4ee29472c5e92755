"""A learner under examination: its training samples, test samples, and the outputs of its model's layers for both."""

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

MIN_SAMPLES = 4
"""The fewest samples for which a distance correlation can be corrected."""
MAX_OWN_SAMPLES = 2000
"""Training samples of a learner that are examined, at most; its means are then of these."""
MAX_AUXILIARY = 2000
"""Test samples of an attacker by default, at most: else half of them."""
_MIN_SIDE = 8  # pixels of an image that is reconstructed
FEATURES = "features"


@dataclass(frozen=True, eq=False)
class ExaminedSamples:
    """Samples: inputs of the model, images for comparison, classes, and layer outputs by module."""

    raw: Tensor  # (n, ...) inputs; characters one-hot
    images: Tensor | None  # (n, channels, height, width) in [0, 1]
    targets: np.ndarray  # (n,)
    outputs: Mapping[str, Tensor]  # (n, ...) each

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class ExaminedLearner:
    """A learner: its own training samples, test samples, and the indices of the attacker's samples among these.

    shared: which of its own samples may enter an upload, (own,).
    """

    who: int
    own: ExaminedSamples
    shared: np.ndarray
    tests: ExaminedSamples
    auxiliary: np.ndarray


def select_learners(run: SavedRun, learners: int) -> list[int]:
    """The first N learners that have enough training samples."""
    enough = [who for who in range(run.learners) if len(run.samples(who)[1]) >= MIN_SAMPLES][:learners]
    if not enough:
        raise DataError(
            f"no learner of the run has {MIN_SAMPLES} training samples, the fewest that leakage is measured on"
        )
    return enough


def default_layers(run: SavedRun, who: Sequence[int]) -> tuple[str, ...]:
    """The layers that are examined by default: the cut if all models have one, else the features."""
    return (CUT,) if all(run.learner(each).model.cut for each in who) else (FEATURES,)


def resolve_layers(run: SavedRun, who: int, layers: Sequence[str]) -> dict[str, str]:
    """The modules of a learner's model by the names of layers: "cut" is the module at which the model is cut."""
    learner = run.learner(who)
    cut, model = learner.model.cut, learner.task.model
    known = [name for name, _ in learner.model.named_modules(remove_duplicate=False) if name]
    if CUT in layers and not cut and CUT not in known:
        raise ConfigurationError(
            f"{model}, the model of learner {who}, has no cut; choose one of its layers: {', '.join(known)}"
        )
    for layer in layers:
        if layer not in known and not (layer == CUT and cut):
            raise UnknownName("layer", layer, [*known, *([CUT] if cut else [])], of=model)
    return {layer: cut if layer == CUT and cut else layer for layer in dict.fromkeys(layers)}


def examine_learner(
    run: SavedRun, who: int, modules: Sequence[str], auxiliary: int | None, device: str
) -> ExaminedLearner:
    """Load a learner's samples and compute the outputs of modules for them, on a device."""
    inputs, targets = run.samples(who)
    test_inputs, test_targets = run.tests(who)
    count = _auxiliary_samples(auxiliary, len(test_targets))
    own = evenly_spaced(len(targets), MAX_OWN_SAMPLES)
    tests = evenly_spaced(len(test_targets), max(2 * MAX_AUXILIARY, count))
    inputs, targets, test_inputs, test_targets = inputs[own], targets[own], test_inputs[tests], test_targets[tests]
    both = np.concatenate([inputs, test_inputs])
    outputs = run.outputs(who, both, list(dict.fromkeys([*modules, FEATURES])), device)
    tensors = {name: torch.from_numpy(values).to(device) for name, values in outputs.items()}
    raw = _raw(run.data, both)
    images = _pixels(run.data, raw).to(device) if can_be_reconstructed(run.data) else None
    n = len(targets)
    own_samples, test_samples = (
        ExaminedSamples(
            torch.from_numpy(raw[part]).to(device),
            None if images is None else images[part],
            labels,
            {name: values[part] for name, values in tensors.items()},
        )
        for part, labels in ((slice(None, n), targets), (slice(n, None), test_targets))
    )
    attacker = evenly_spaced(len(test_targets), count)
    return ExaminedLearner(who, own_samples, run.may_share(who)[own], test_samples, attacker)


def can_be_reconstructed(data: Dataset) -> bool:
    """Whether samples are images of one or three channels and at least 8 pixels per side."""
    return len(data.shape) == 3 and data.shape[0] in (1, 3) and min(data.shape[1:]) >= _MIN_SIDE


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Indices of at most `most` of `count` things, evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def refuse_other_kinds(data: Dataset, what: str) -> None:
    """Refuse data whose samples have no class each: attacks compare samples of one class."""
    if data.kind != "single-label":
        such = "such as bins of the number" if data.kind == "regression" else "such as one of the labels"
        raise ConfigurationError(
            f"{what} is measured on samples of one class each, and data set {data.name!r} is for {data.kind}; make a "
            f"data set with classes, {such}, to measure it there"
        )


def _auxiliary_samples(wanted: int | None, tests: int) -> int:
    """The number of test samples of the attacker."""
    least = 2 * MIN_SAMPLES
    if tests < least:
        raise DataError(f"there are {tests} test samples; measuring leakage needs at least {least}")
    if wanted is None:
        return min(tests // 2, MAX_AUXILIARY)
    if not MIN_SAMPLES <= wanted <= tests:
        raise ConfigurationError(
            f"auxiliary is {wanted}; there are {tests} test samples: choose {MIN_SAMPLES} to {tests}"
        )
    return wanted


def _raw(data: Dataset, inputs: np.ndarray) -> np.ndarray:
    """Inputs with meaningful distances: characters one-hot, all others unchanged."""
    if not data.alphabet:
        return inputs
    return np.eye(len(data.alphabet), dtype=np.float32)[inputs.astype(np.int64)]  # (n, length, characters)


def _pixels(data: Dataset, inputs: np.ndarray) -> Tensor:
    """Images before standardization; values outside [0, 1] are scaled into it."""
    pixels = data.scaling.undo(inputs)
    low, high = float(pixels.min()), float(pixels.max())
    tolerance = 1e-4  # for rounding
    if low < -tolerance or high > 1 + tolerance:
        pixels = (pixels - low) / max(high - low, tolerance)
    return torch.from_numpy(np.clip(pixels, 0, 1).astype(np.float32))
