"""How long learners' training steps take on an engine: a few steps of copies, after which nothing is left behind."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from consilience.errors import ConsilienceError, first_sentence
from consilience.simulation.engines.jobs import Work
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.stacked_answers import stack_answers
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import Setup

log = logging.getLogger("consilience")

_STEPS = 4  # of a round
_WARM_UPS = 3  # two runs of each step, and one that records it
_REPEATS = 3  # of which the fastest counts


def step_seconds(open_engine: Callable[[], StackEngine], setup: Setup) -> float:
    """Seconds of one learner's training step, the mean over all cohorts; infinite where the engine cannot take it."""
    try:
        with open_engine() as engine:
            Rounds(setup, engine).start()
            work = np.array([float(plan.members.sizes.sum()) * plan.work.epochs for plan in engine.plans])
            each = [_cohort_seconds(engine, i) if amount else 0.0 for i, amount in enumerate(work)]
            return float((work * np.array(each)).sum() / max(work.sum(), 1.0))
    except (ConsilienceError, RuntimeError) as error:
        log.info("this engine cannot be measured, and is not chosen: %s", first_sentence(error))
        return math.inf


def _cohort_seconds(engine: StackEngine, cohort: int) -> float:
    """Of the most learners of a cohort that can work together."""
    members = engine.plans[cohort].members
    kinds = np.where(members.even, members.sizes, 0)  # batches have one width at every step
    found, counts = np.unique(kinds, return_counts=True)
    rows = engine.split(Work, cohort, np.flatnonzero(kinds == found[counts.argmax()]))[0]
    trainer, held = engine.trainers.get(cohort, rows), engine.answers.held_by(cohort, rows)
    answers = stack_answers(engine.answers.batches, held, held, engine.device)
    trainer.enter(engine.cohorts[cohort], rows, 1, answers)
    del trainer.samples.widths[_STEPS:]
    for _ in range(_WARM_UPS):
        trainer.train()
    fastest = min(_seconds(trainer.train, engine.device) for _ in range(_REPEATS))
    return fastest / (len(rows) * len(trainer.samples.widths))


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """The time until the device has done this work."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
