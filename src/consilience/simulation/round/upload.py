"""Uploads: what learners contribute goes into the channels of their federations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from consilience.channels import as_slice
from consilience.simulation.engines.jobs import Work
from consilience.simulation.round.misbehave import misbehave
from consilience.simulation.round.participation import Presence
from consilience.simulation.round.run_state import RunState
from consilience.simulation.round.seen_upload import SeenUpload
from consilience.simulation.round.work import UploadsDue
from consilience.simulation.stacked_channels import upload_stacked


def expect_uploads(run: RunState, due: UploadsDue, presence: Presence, names: Iterable[str]) -> None:
    """Tell every federation's channels who will upload."""
    for name in names:
        cohorts = [cohort for cohort, uploads in due.items() if name in uploads]
        uploading = np.any(run.setup.cohorts.rows[cohorts] >= 0, axis=0) & presence.exchanges  # (federations, learners)
        for federation, members in zip(run.federations, uploading, strict=True):
            federation.expect(name, np.flatnonzero(members))


def upload(run: RunState, job: Work) -> None:
    """Put what the rows of a job contribute into the channels of their federations."""
    federations, members = run.at(job.cohort)
    entries = np.flatnonzero(job.online)  # of the job
    of = federations[job.rows[entries]]
    for name in job.uploads if entries.size else ():
        tensors, weights = run.engine.uploads(job, name)
        versions, left = run.answers.versions(job.held[name]), np.unique(of).tolist()
        if run.on_upload is None and not run.setup.federations.attacks:
            rows = of, members[job.rows[entries]], entries
            left = upload_stacked(run.federations, name, rows, tensors, weights, run.round)
        for f in left:
            some = entries[of == f]
            who, taken = members[job.rows[some]], as_slice(some)
            mine = {k: t[taken] for k, t in tensors.items()}
            channel = run.learners[job.cohort].channels[name]
            sent, weight = misbehave(run.setup.federations.attacks, who, channel, mine, weights[taken])
            sent = run.federations[f].only_shared(name, sent)
            if run.on_upload is not None:
                rows, held = job.rows[some], job.held[name][some]
                run.on_upload(SeenUpload(run.round, name, int(f), job.cohort, rows, who, held, sent, weight))
            for refused in run.federations[f].upload(name, who, sent, weight, versions[some], run.round):
                k = int(np.flatnonzero(who == refused)[0])
                _return_refused(run, job.cohort, int(job.rows[some[k]]), name, {key: t[k] for key, t in mine.items()})


def within_budget(run: RunState, presence: Presence, *, train: bool) -> Presence:
    """Who trains, and who uploads too: not those whose privacy budget is spent. They still download."""
    if run.privacy is None:
        return presence
    return replace(presence, online=presence.online & run.privacy.allowed(train))


def spend(run: RunState, job: Work) -> None:
    """Note what the private uploads and steps of a job have spent."""
    if run.privacy is not None:
        run.privacy.record(job.cohort, job.rows, job.online & bool(job.uploads), trained=job.train)


def _return_refused(run: RunState, cohort: int, row: int, name: str, sent: Mapping[str, Tensor]) -> None:
    """A refused upload is not lost where the learner keeps residuals: it is added to them."""
    rows = np.array([row])
    state = run.engine.read(cohort, rows)
    residuals = state.residuals.get(name, {})
    for key, residual in residuals.items():
        residual[0] += sent[key].to(residual.device)
    if residuals:
        run.engine.write(cohort, rows, state)
