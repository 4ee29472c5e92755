"""Local work of a role's learners: local steps, one pass for representations, contribute, encode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from consilience.simulation.engines.jobs import Job, JobResult, Work
from consilience.simulation.round.model_location import bring_models
from consilience.simulation.round.participation import Presence
from consilience.simulation.round.run_state import RunState

UploadsDue = Mapping[int, tuple[str, ...]]
"""The exchanges to which each cohort of a role uploads this time."""


def uploads_due(run: RunState, role: str, *, train: bool) -> dict[int, tuple[str, ...]]:
    """What a role's cohorts upload in this round; without training, what is due before the first round."""
    return {cohort: _uploads_due(run, cohort, train) for cohort in run.cohorts_of(role)}


def _uploads_due(run: RunState, cohort: int, train: bool) -> tuple[str, ...]:
    learner, due = run.learners[cohort], run.due(cohort)
    return tuple(
        e.name for e in learner.exchanges if e.name in learner.uploading & due and (train or e.uploads_before_training)
    )


def do_local_work(
    run: RunState, due: UploadsDue, presence: Presence, *, train: bool, evaluate: bool
) -> Iterator[tuple[Work, JobResult]]:
    """Let every participant of these cohorts work; the engine has the uploads of a job until the next one is asked for.

    evaluate: also test models before answers change them.
    """
    jobs: list[Job] = []
    for cohort, uploads in due.items():
        at, plan = run.at(cohort), run.engine.plans[cohort]
        rows = np.flatnonzero(presence.participates[at])
        bring_models(run, cohort, rows)
        if not (train or uploads):
            continue
        before = evaluate and run.setup.evaluation.labeled and bool(run.changing(cohort))
        trains = train and plan.work.epochs > 0
        for some in run.engine.split(Work, cohort, rows):
            online, held = presence.online[at][some], run.answers.held_by(cohort, some)
            jobs.append(Work(cohort, some, run.round, held, uploads, online, trains, before))
    for job, result in run.engine.run(jobs):
        assert isinstance(job, Work)
        yield job, result
