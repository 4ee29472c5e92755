"""Where the features of the same test samples lie at two learners of a run: in the plane, laid out together by t-SNE.

The models are those of a run's last checkpoint: of its first seed, and its first variant where it has several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from consilience.config import Config
from consilience.data import Dataset
from consilience.data.cache import cache_folder
from consilience.data.download import CHECKSUMS, chosen_folder
from consilience.errors import CheckpointError, ConfigurationError, ConsilienceError, DataError, TrainingError
from consilience.layout import Layout
from consilience.learner import Blueprint, Learner, Row
from consilience.methods import build_method
from consilience.models import own, recipe
from consilience.simulation.cast import Actor, cast
from consilience.simulation.folder import RunFolder
from consilience.simulation.marks import marks
from consilience.simulation.preparation import load_data, models_of
from consilience.simulation.scene import DTYPES

SAMPLES = 300
"""Of the test set, at each learner."""
_CLASSES = 20  # that can be told apart on a map
_LEAST = 8  # points that make a map
_LARGEST = 2e9  # bytes of a checkpoint that is read for a map
_PERPLEXITY = 30.0


@dataclass(frozen=True)
class FeatureMap:
    """Rows `{x, y, learner, class}`, what they are in words, and what was laid out: (learners, samples, width)."""

    rows: list[dict[str, Any]]
    text: str
    features: np.ndarray


def feature_map(folder: Path, samples: int = SAMPLES) -> FeatureMap:
    """Features of some test samples at the first two learners; where there can be no map, the error says why."""
    run = RunFolder.open(folder)
    config, (arrays, numbers) = run.config, _checkpoint(run)
    actors = _actors(config)
    if len(actors) < 2:
        raise ConfigurationError("there is one learner, and a map lays the features of two beside each other")
    data = _data(config, numbers.get("made_of", {}))
    chosen = _chosen(data, samples)
    features = [_features(config, data, actors, who, arrays, data.test_inputs[chosen]) for who in (0, 1)]
    names = [data.labels[c] if data.labels else str(c) for c in data.test_targets[chosen]]
    rows = [
        {"x": float(x), "y": float(y), "learner": who, "class": name}
        for who, places in enumerate(_laid_out(features))
        for name, (x, y) in zip(names, places, strict=True)
    ]
    return FeatureMap(rows, _in_words(config, data, len(chosen), int(numbers["round"])), np.stack(features))


def _checkpoint(run: RunFolder) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
    size = sum(file.stat().st_size for file in run.path.glob("checkpoint-*.safetensors"))
    if size > _LARGEST:
        raise CheckpointError(f"the checkpoint is of {size / 1e9:.1f} GB, which is too much to be read for a map")
    kept = run.load()
    if kept is None:
        raise CheckpointError("no checkpoint is kept in the run's folder")
    return kept


def _actors(config: Config) -> Sequence[Actor]:
    """Who the learners are, in the first variant."""
    first = config.variant(0) if config.variants else config
    return cast(first, build_method(first.method.name, first.method.settings), models_of(None, first))


def _data(config: Config, made_of: Mapping[str, str]) -> Dataset:
    """The data of a run, if it is here and the very same; nothing is downloaded for a map."""
    if config.data in CHECKSUMS and chosen_folder(Path(config.data_dir) if config.data_dir else None) is None:
        cache = cache_folder() / config.data
        if not all((cache / file).is_file() for file in CHECKSUMS[config.data]):
            raise DataError(f"the data set {config.data!r} is not in {cache}, and is not downloaded for a map")
    data = load_data(config)
    found = marks(data, build_method(config.method.name, config.method.settings), config)
    for what in ("data", "model"):  # a method may be told in other words by now, and its weights are the same
        if made_of.get(what) != found.get(what):
            raise CheckpointError(f"the {what} that is here now is not the one of the run")
    return data


def _chosen(data: Dataset, samples: int) -> np.ndarray:
    """Positions in the test set, evenly taken, of classes that can be told apart on a map."""
    there = np.flatnonzero(data.test_targets < _CLASSES)
    if len(there) > samples:
        there = there[np.linspace(0, len(there) - 1, samples).round().astype(int)]
    if 2 * len(there) < _LEAST:
        raise DataError(f"{len(there)} test samples at two learners are too few for a map")
    return there


def _features(
    config: Config,
    data: Dataset,
    actors: Sequence[Actor],
    who: int,
    arrays: Mapping[str, np.ndarray],
    inputs: np.ndarray,
) -> np.ndarray:
    """What a learner's own model makes of the inputs, (samples, width)."""
    kinds = list(dict.fromkeys(actor.kind for actor in actors))
    cohort = kinds.index(actors[who].kind)
    number = [actor.kind for actor in actors[:who]].count(actors[who].kind)
    actor, dtype = actors[who], DTYPES[config.precision]
    assert isinstance(actor.model, str)
    build = recipe(actor.model, data.shape, data.classes, config.width)
    try:
        learner = Learner(Blueprint(build, actor.role, actor.optimiser, data.shape, actor.model, dtype))
        learner.wear(_row(learner, arrays, f"learners.{cohort}.", number, config.device))
        given = torch.from_numpy(np.ascontiguousarray(inputs)).to(dtype)
        with torch.random.fork_rng(devices=[]):
            seen = learner.represent(given, torch.zeros(len(given), dtype=torch.int64))["features"]
    except ConsilienceError:
        raise
    except Exception as error:  # whatever somebody's own code may raise; a checkpoint of another model
        raise CheckpointError(f"the model of learner {who} cannot be made again: {own.failure(error)}") from error
    features: np.ndarray = seen.numpy().reshape(len(seen), -1)
    if not np.isfinite(features).all():
        raise TrainingError(f"features of learner {who} are no numbers")
    return features


def _row(learner: Learner, arrays: Mapping[str, np.ndarray], prefix: str, number: int, device: str) -> Row:
    """A learner's row out of a checkpoint, laid out as the learner here has it: on a GPU kernels lie otherwise."""
    row = {
        key.removeprefix(prefix): torch.from_numpy(np.array(stacked[number]))
        for key, stacked in arrays.items()
        if key.startswith(prefix)
    }
    for part, layout in (("parameters", learner.parameters), ("buffers", learner.buffers)):
        lain = Layout(layout.shapes, channels_last=torch.device(device).type == "cpu")
        if layout.size != row[part].numel():
            raise CheckpointError(
                f"the checkpoint has {row[part].numel()} {part} of a learner, its model {layout.size}"
            )
        row[part] = layout.flat(lain.views(row[part])).to(row[part].dtype)
    return row


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


def _in_words(config: Config, data: Dataset, samples: int, round_: int) -> str:
    first = [f"seed {config.seed}"] * (config.seeds > 1)
    first += [" ".join(f"{k}={v}" for k, v in config.variants[0].items())] if config.variants else []
    some = f" of the first {_CLASSES} of {data.classes} classes" if data.classes > _CLASSES else ""
    after = ", ".join([f"after round {round_}", *first])
    return f"Features of {samples} test samples{some} at learners 0 and 1, {after}, laid out by t-SNE together."
