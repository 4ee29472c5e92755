"""The record of one round: metric names to (federations, learners) arrays, NaN where a learner has no value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from consilience.exchanges import Exchange
from consilience.kinds import group_count
from consilience.learner.learner import Learner
from consilience.wire import schema

Record = dict[str, np.ndarray]
PHASES = ("train", "represent", "exchange", "evaluate")


def empty_record(federations: int, learners: int, cohorts: Iterable[Learner], more: Iterable[str] = ()) -> Record:
    """The record of a round in which nothing has happened yet; cohorts: their learners; more: further metrics."""
    shape = (federations, learners)
    terms = dict.fromkeys(f"loss.{t}" for cohort in cohorts for t in cohort.loss_terms)
    extra = dict.fromkeys(key for cohort in cohorts for key in _extra_metrics(cohort))
    missing = [*terms, "accuracy", "accuracy_own", "accuracy_before", "accuracy_train", *extra]
    missing += [key for key in more if not key.startswith("bytes.")]
    zero = ["bytes.up", "bytes.down", "values.up", "values.down", *(f"seconds.{p}" for p in PHASES), "participated"]
    zero += [key for key in more if key.startswith("bytes.")]
    record = {k: np.full(shape, np.nan) for k in missing} | {k: np.zeros(shape) for k in zero}
    return record | {f"wall.{p}": np.zeros(()) for p in PHASES}


def has_metrics(exchange: Exchange) -> bool:
    """Whether an exchange has metrics of its own."""
    return type(exchange).metrics is not Exchange.metrics


def _extra_metrics(learner: Learner) -> Iterator[str]:
    """The names of the metrics of a learner's exchanges: what they return for no learners."""
    nobody, samples = (
        np.zeros(0),
        np.zeros((0, group_count(learner.task))),
    )
    for e in (e for e in learner.exchanges if has_metrics(e)):
        channel = learner.channels[e.name]
        lead = (channel.draw,) if isinstance(channel, schema.Pool) else ()
        yield from e.metrics(learner.task, nobody, np.zeros((0, *lead, *channel.rows)), samples)


def share_wall_time(wall: float, spent: Mapping[str, float], record: Record) -> None:
    """Record the wall-clock time of parallel work by phase, in proportion to the seconds spent on each."""
    total = sum(spent.values()) or 1.0
    for phase in PHASES:
        record[f"wall.{phase}"] += wall * spent.get(phase, 0.0) / total
