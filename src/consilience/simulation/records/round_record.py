"""What one round was like: metric names to (federations, learners) arrays, NaN where a learner has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from consilience.learner.learner import Learner

Record = dict[str, np.ndarray]
PHASES = ("train", "represent", "exchange", "evaluate")


def terms_of(learner: Learner) -> list[str]:
    """Names of the loss terms, in the order training reports them."""
    return [learner.role.objective.name, *(e.name for e in learner.exchanges)]


def blank(federations: int, learners: int, machinery: Iterable[Learner], more: Iterable[str] = ()) -> Record:
    """A record of a round in which nothing has happened yet; more: what else a run tells of."""
    shape = (federations, learners)
    terms = dict.fromkeys(f"loss.{t}" for m in machinery for t in terms_of(m))
    extra = dict.fromkeys(k for m in machinery for e in m.exchanges for k in e.metrics(m.task, np.zeros(0)))
    missing = [*terms, "accuracy", "accuracy_local", "accuracy_before", "accuracy_train", *extra]
    missing += [key for key in more if not key.startswith("bytes.")]
    zero = ["bytes.up", "bytes.down", "values.up", "values.down", *(f"seconds.{p}" for p in PHASES), "participated"]
    zero += [key for key in more if key.startswith("bytes.")]
    record = {k: np.full(shape, np.nan) for k in missing} | {k: np.zeros(shape) for k in zero}
    return record | {f"wall.{p}": np.zeros(()) for p in PHASES}


def share_out(wall: float, spent: Mapping[str, float], record: Record) -> None:
    """Wall-clock time of work done side by side, by the phases it was spent on."""
    total = sum(spent.values()) or 1.0
    for phase in PHASES:
        record[f"wall.{phase}"] += wall * spent.get(phase, 0.0) / total
