"""Which engine is faster on a GPU: measured once for a model, a number of learners and a device, and remembered."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from consilience.data.cache import cache_folder
from consilience.errors import ConsilienceError
from consilience.files import lock_file, readable_json, replace_file, unlock_file
from consilience.learner.learner import Learner
from consilience.simulation.engines.cohort import CohortPlan

log = logging.getLogger("consilience")

Seconds = Mapping[str, float]
"""Seconds of a learner's step by engine; infinite where an engine cannot do it."""
_FILE = "engines.json"
_FORMAT = 1  # part of every key, so that what an earlier version measured in another way is not used


def choose_measured(key: str, measure: Callable[[], Seconds], file: Path | None = None) -> str:
    """The faster engine, by what is remembered under this key, or else by measuring now.

    The first engine measured is chosen where none is faster. file: where measurements are remembered; by default in the
    user's cache folder.
    """
    place = cache_folder() / _FILE if file is None else file
    seconds, when = _remembered(place).get(key), "measured before"
    if seconds is None:
        seconds, when = dict(measure()), "measured now"
        _remember(place, key, seconds)
    fastest = min(seconds, key=lambda name: seconds[name])
    if not math.isfinite(seconds[fastest]):
        fastest = next(iter(seconds))
    each = ", ".join(f"{name} {1e6 * value:.3g} us" for name, value in seconds.items())
    log.info("engine %s: one learner's training step takes %s (%s)", fastest, each, when)
    return fastest


def measurement_key(plans: Sequence[CohortPlan], learners: Sequence[Learner], device: str) -> str:
    """What a measurement depends on: models, numbers of learners, batch sizes, precision, optimizer, torch, device."""
    cohorts = [_describe(plan, learner) for plan, learner in zip(plans, learners, strict=True)]
    text = json.dumps([_FORMAT, cohorts, torch.__version__, device])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _describe(plan: CohortPlan, learner: Learner) -> list[Any]:
    """What of a cohort decides which engine is faster; not the method: penalties cost little beside the model."""
    model, spec = repr(learner.model), plan.spec
    shapes = {name: list(shape) for name, shape in learner.binding.parameters.shapes.items()}
    precision = [str(spec.dtype), spec.half]
    optimizer = type(spec.optimizer).__name__
    return [model, shapes, list(spec.shape), len(plan.members), plan.work.batch_size, precision, optimizer]


def _remembered(file: Path) -> dict[str, dict[str, float]]:
    """Measurements by key; a file that is missing or damaged counts as none, and so does a damaged entry."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {key: each for key, each in entries if _is_measurement(each)}


def _is_measurement(entry: Any) -> bool:
    numbers = entry.values() if isinstance(entry, dict) and entry else [None]
    return all(isinstance(value, float | int) and value > 0 for value in numbers)


def _remember(file: Path, key: str, seconds: Seconds) -> None:
    """Add a measurement to the file; where it cannot be written, the next run measures again."""
    if not all(math.isfinite(value) for value in seconds.values()):
        return  # what did not fit now may fit another time
    try:
        lock = lock_file(file.with_suffix(".lock"), f"{file} is being written")
        try:
            content = readable_json(_remembered(file) | {key: dict(seconds)})
            replace_file(file, content.encode())
        finally:
            unlock_file(lock)
    except (OSError, ConsilienceError) as error:
        log.debug("the measured engine is not remembered: %s", error)
