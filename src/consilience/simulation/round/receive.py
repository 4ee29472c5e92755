"""Receiving: new answers change learners' models."""

from __future__ import annotations

import numpy as np

from consilience.simulation.engines.jobs import Job, Receive
from consilience.simulation.round.download import Fresh
from consilience.simulation.round.model_location import bring_models
from consilience.simulation.round.run_state import RunState


def receive(run: RunState, fresh: Fresh) -> None:
    """Let new answers change the models of those who have them."""
    jobs: list[Job] = []
    for i in range(len(run.learners)):
        new = {name: fresh[i][name] for name in run.changing(i)}
        if not new:
            continue
        changed = np.flatnonzero(np.any([numbers >= 0 for numbers in new.values()], axis=0))
        bring_models(run, i, changed)
        for rows in run.engine.split(Receive, i, changed):
            jobs.append(Receive(i, rows, {name: numbers[rows] for name, numbers in new.items()}))
    for _ in run.engine.run(jobs):
        pass
