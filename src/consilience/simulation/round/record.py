"""Recording: results of a round's work, and bytes per round, by learner; a NaN or infinite value is noticed here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consilience.errors import TrainingError
from consilience.evaluation.classification import metric_keys
from consilience.kinds import kind_of
from consilience.simulation.engines.jobs import JobResult, Work
from consilience.simulation.records.round_record import Record, empty_record, has_metrics
from consilience.simulation.round.run_state import At, RunState


def new_record(run: RunState) -> Record:
    """The record of a round in which nothing has happened yet."""
    setup = run.setup
    more = [f"accuracy_{probe}" for probe in setup.evaluation.probes]
    more += ["accuracy_ensemble"] if setup.evaluation.ensemble else []
    more += ["accuracy_heads"] if setup.evaluation.ensemble and setup.evaluation.headed else []
    more += ["accuracy_validation"] if setup.data.validation is not None else []
    more += ["accuracy_own_before"] if setup.data.local_test_sets is not None and setup.evaluation.labeled else []
    more += ["own_model_weight"] if any(learner.spec.own_model for learner in run.learners) else []
    more += kind_of(setup.data.train.target).further_names
    more += metric_keys(setup.evaluation.metrics, setup.data.train.classes)
    more += ["dependence"] if setup.evaluation.watched_layer is not None else []
    more += ["partners_rand"] if run.chosen is not None and setup.partners.groups is not None else []
    more += ["epsilon"] if run.privacy is not None else []
    more += ["bytes.public"] if setup.method.host is not None else []
    return empty_record(*setup.federations.shape, run.learners, more)


def record_public_set(run: RunState, record: Record, joined: int) -> None:
    """Count the bytes of the public set, which goes to those who join in this round."""
    if run.setup.method.host is not None:
        received = run.setup.public_bytes * (run.setup.federations.joins == joined)
        record["bytes.public"] += received
        record["bytes.down"] += received


def record_spent(run: RunState, record: Record) -> None:
    """Record what each learner has spent of its privacy budget so far."""
    if run.privacy is not None:
        record["epsilon"][:] = run.privacy.epsilon()


def record_work(run: RunState, record: Record, job: Work, result: JobResult) -> dict[str, float]:
    """Record the local work of a few rows, and return its seconds by phase; a NaN or infinite value ends the run.

    The bytes of their uploads are counted here, those of downloads in `download`.
    """
    learner = run.learners[job.cohort]
    federations, members = run.at(job.cohort)
    at = federations[job.rows], members[job.rows]
    assert result.losses is not None
    *terms, correct = result.losses.T
    losses = dict(zip(learner.loss_terms, terms, strict=True))
    _refuse_non_finite(run, at, losses, result.non_finite)
    if job.train:
        for term, values in losses.items():
            record[f"loss.{term}"][at] = values
        record["accuracy_train"][at] = 100 * correct
        samples = run.setup.data.training_counts[at]
        for e in (e for e in learner.exchanges if e.name in learner.penalized and has_metrics(e)):
            received = run.answers.counts(job.held[e.name])
            for key, values in e.metrics(learner.task, losses[e.name], received, samples).items():
                record[key][at] = values
    if result.correct is not None:
        score = kind_of(learner.task).score
        record["accuracy_before"][at] = score(result.correct, run.setup.data.test_totals)
    for phase, seconds in result.seconds.items():
        record[f"seconds.{phase}"][at] += seconds
    if run.setup.partners.peer_to_peer:  # messages are counted by link
        return {phase: float(seconds.sum()) for phase, seconds in result.seconds.items()}
    count = run.byte_counts[job.cohort]
    record["bytes.up"][at] += count.up(job.uploads) * job.online
    record["values.up"][at] += count.values("up", job.uploads) * job.online
    return {phase: float(seconds.sum()) for phase, seconds in result.seconds.items()}


def _refuse_non_finite(run: RunState, at: At, losses: Mapping[str, np.ndarray], non_finite: Mapping[int, str]) -> None:
    """Where a loss or an upload is NaN or infinite, stop the run, or in a sweep note that a federation has diverged."""
    wrong = dict(non_finite)
    for term, values in reversed(list(losses.items())):  # the first term is named
        wrong |= {i: f"loss term {term!r} is NaN or infinite" for i in np.flatnonzero(~np.isfinite(values)).tolist()}
    if not wrong:
        return
    for entry, what in sorted(wrong.items()):
        f = int(at[0][entry])
        run.diverged.setdefault(f, f"learner {at[1][entry]} ({run.setup.label(f)}), round {run.round}: {what}")
    if not run.setup.variants.names:
        first = next(iter(run.diverged.values()))
        raise TrainingError(f"{run.setup.method.name}: {first}; try a smaller learning rate or weight")
