"""A t-SNE map of the features of the same test samples at two learners of a run.

The models are those of the run's last checkpoint, of its first seed and first variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import ConfigurationError, DataError, TrainingError
from consilience.kinds import kind_of
from consilience.simulation.records.export import SavedRun, read_saved_run

SAMPLES = 300
"""Test samples on a map, at each learner."""
_MAX_CLASSES = 20  # on a map
_MIN_POINTS = 8
_PERPLEXITY = 30.0


@dataclass(frozen=True)
class FeatureMap:
    """Rows `{x, y, learner, class}`, a description, and the features: (learners, samples, width).

    group: what `class` is, a class or a bin. order: all of them.
    """

    rows: list[dict[str, Any]]
    text: str
    features: np.ndarray
    group: str
    order: list[str]


def feature_map(folder: Path, samples: int = SAMPLES) -> FeatureMap:
    """The map of the first two learners of the run in a folder; an error says why there is none."""
    return map_features(read_saved_run(folder), samples)


def map_features(run: SavedRun, samples: int = SAMPLES) -> FeatureMap:
    """The map of the first two learners of a saved run."""
    if run.learners < 2:
        raise ConfigurationError("the run has one learner, and a map compares the features of two")
    data = run.data
    if data.kind == "multi-label":
        raise ConfigurationError("a map colors samples by their class, and these have several labels each")
    groups = kind_of(data.target).strata(data.target, data.test_targets)  # (tests,) classes or bins
    chosen = _select_samples(groups, samples)
    features = [run.features(who, data.test_inputs[chosen]) for who in (0, 1)]
    names = [data.group_names[group] for group in groups[chosen]]
    rows = [
        {"x": float(x), "y": float(y), "learner": who, "class": name}
        for who, places in enumerate(_embed(features))
        for name, (x, y) in zip(names, places, strict=True)
    ]
    described = _describe(run, len(chosen))
    return FeatureMap(rows, described, np.stack(features), kind_of(data.target).group, data.group_names)


def _select_samples(groups: np.ndarray, samples: int) -> np.ndarray:
    """Evenly spaced indices of test samples of the first classes."""
    there = np.flatnonzero(groups < _MAX_CLASSES)
    if len(there) > samples:
        there = there[np.linspace(0, len(there) - 1, samples).round().astype(int)]
    if 2 * len(there) < _MIN_POINTS:
        raise DataError(f"{len(there)} test samples are too few for a map")
    return there


def _embed(features: Sequence[np.ndarray]) -> np.ndarray:
    """The t-SNE embedding of all learners' features together: (learners, samples, 2)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    widths = [each.shape[1] for each in features]
    if len(set(widths)) > 1:
        raise ConfigurationError(f"features of widths {widths[0]} and {widths[1]} cannot be embedded together")
    joined = np.concatenate(features).astype(np.float32)  # (learners x samples, width)
    if np.ptp(joined, axis=0).max() == 0:
        raise TrainingError("all features are the same")
    start = "pca" if widths[0] > 1 else "random"
    perplexity = min(_PERPLEXITY, (len(joined) - 1) / 3)
    with threadpool_limits(1):  # more threads mostly wait for each other
        places: np.ndarray = TSNE(2, init=start, perplexity=perplexity, random_state=0).fit_transform(joined)
    return places.reshape(len(features), -1, 2)


def _describe(run: SavedRun, samples: int) -> str:
    classes = run.data.groups
    some = f" of the first {_MAX_CLASSES} of {classes} classes" if classes > _MAX_CLASSES else ""
    after = f"after round {run.round}{run.which}"
    return f"Features of {samples} test samples{some} at learners 0 and 1, {after}, embedded together by t-SNE."
