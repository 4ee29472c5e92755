"""Where the features of the same test samples lie at two learners of a run: in the plane, laid out together by t-SNE.

The models are those of a run's last checkpoint: of its first seed, and its first variant where it has several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.data import Dataset
from consilience.errors import ConfigurationError, DataError, TrainingError
from consilience.simulation.records.export import SavedRun, read_kept

SAMPLES = 300
"""Of the test set, at each learner."""
_CLASSES = 20  # that can be told apart on a map
_LEAST = 8  # points that make a map
_PERPLEXITY = 30.0


@dataclass(frozen=True)
class FeatureMap:
    """Rows `{x, y, learner, class}`, what they are in words, and what was laid out: (learners, samples, width)."""

    rows: list[dict[str, Any]]
    text: str
    features: np.ndarray


def feature_map(folder: Path, samples: int = SAMPLES) -> FeatureMap:
    """Features of some test samples at the first two learners; where there can be no map, the error says why."""
    return map_of(read_kept(folder), samples)


def map_of(kept: SavedRun, samples: int = SAMPLES) -> FeatureMap:
    """The same, of a run that was read before."""
    if kept.learners < 2:
        raise ConfigurationError("there is one learner, and a map lays the features of two beside each other")
    data = kept.data
    chosen = _chosen(data, samples)
    features = [kept.features(who, data.test_inputs[chosen]) for who in (0, 1)]
    names = [data.labels[c] if data.labels else str(c) for c in data.test_targets[chosen]]
    rows = [
        {"x": float(x), "y": float(y), "learner": who, "class": name}
        for who, places in enumerate(_laid_out(features))
        for name, (x, y) in zip(names, places, strict=True)
    ]
    return FeatureMap(rows, _in_words(kept, len(chosen)), np.stack(features))


def _chosen(data: Dataset, samples: int) -> np.ndarray:
    """Positions in the test set, evenly taken, of classes that can be told apart on a map."""
    there = np.flatnonzero(data.test_targets < _CLASSES)
    if len(there) > samples:
        there = there[np.linspace(0, len(there) - 1, samples).round().astype(int)]
    if 2 * len(there) < _LEAST:
        raise DataError(f"{len(there)} test samples at two learners are too few for a map")
    return there


def _laid_out(features: Sequence[np.ndarray]) -> np.ndarray:
    """A place for each feature, those of all learners in one plane: (learners, samples, 2)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    widths = [each.shape[1] for each in features]
    if len(set(widths)) > 1:
        raise ConfigurationError(f"features of widths {widths[0]} and {widths[1]} cannot be laid out together")
    joined = np.concatenate(features).astype(np.float32)  # (learners x samples, width)
    if np.ptp(joined, axis=0).max() == 0:
        raise TrainingError("all features are the same")
    start = "pca" if widths[0] > 1 else "random"
    perplexity = min(_PERPLEXITY, (len(joined) - 1) / 3)
    with threadpool_limits(1):  # more threads mostly wait for each other, the more so on a busy machine
        places: np.ndarray = TSNE(2, init=start, perplexity=perplexity, random_state=0).fit_transform(joined)
    return places.reshape(len(features), -1, 2)


def _in_words(kept: SavedRun, samples: int) -> str:
    classes = kept.data.classes
    some = f" of the first {_CLASSES} of {classes} classes" if classes > _CLASSES else ""
    after = f"after round {kept.round}{kept.which}"
    return f"Features of {samples} test samples{some} at learners 0 and 1, {after}, laid out by t-SNE together."
