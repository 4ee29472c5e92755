"""Choosing partners by what learners upload: the most similar class means, or those most useful for validation."""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import adjusted_rand_score

from consilience.channels import StandingMean
from consilience.simulation.engines.jobs import Job, Represent
from consilience.simulation.records.round_record import Record
from consilience.simulation.round.run_state import RunState

_WORST = float(-np.log(1e-6))  # the loss of a sample whose class a learner does not know


def choose_partners(run: RunState) -> None:
    """Choose every learner's partners by the class means that are uploaded now."""
    plan = run.setup.partners
    assert run.chosen is not None
    held = _held_out_features(run) if plan.partners.kind == "useful" else None
    for f, federation in enumerate(run.federations):
        channel = federation.channels[plan.compared]
        assert isinstance(channel, StandingMean)
        means, counts = channel.values["mean"].numpy(force=True), channel.weights.numpy(force=True)
        scores = similarities(means, counts) if held is None else usefulness(means, counts, held[f])
        run.chosen[f] = best_partners(scores, counts.any(1), plan.partners.count)


def similarities(means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean cosine of two learners' class means over the classes both have, (learners, learners).

    means: (learners, classes, width), taken relative to the center of all; counts: (learners, classes). Learners
    without a common class have -infinity.
    """
    has = counts > 0
    center = means[has].mean(0) if has.any() else 0.0
    apart = np.where(has[..., None], means.astype(np.float64) - center, 0.0)
    norms = np.linalg.norm(apart, axis=2, keepdims=True)
    units = apart / np.where(norms > 0, norms, 1)
    shared = has.astype(np.float64) @ has.T.astype(np.float64)
    total = np.einsum("icw,jcw->ij", units, units)
    return np.where(shared > 0, total / np.maximum(shared, 1), -np.inf)


def usefulness(means: np.ndarray, counts: np.ndarray, held: list[tuple[np.ndarray, np.ndarray] | None]) -> np.ndarray:
    """How well learner j's class means predict learner i's validation samples, (learners, learners).

    It is the negative mean cross-entropy of the classes by squared distance to their means, relative to the mean
    distance. held: features and targets of each learner; None, and -infinity for all, where it has no samples.
    """
    learners = len(means)
    scores, has = np.full((learners, learners), -np.inf), counts > 0
    for i, mine in enumerate(held):
        if mine is None:
            continue
        features, targets = mine
        for j in np.flatnonzero(has.any(1)):
            scores[i, j] = -_loss_of_means(features, targets, means[j].astype(np.float64), has[j])
    return scores


def _loss_of_means(features: np.ndarray, targets: np.ndarray, means: np.ndarray, has: np.ndarray) -> float:
    shared = features[:, : means.shape[1]]  # where only some dimensions are shared, the first
    distances = ((shared[:, None] - means[None]) ** 2).sum(2)  # (samples, classes)
    logits = -distances / max(float(distances[:, has].mean()), 1e-12)
    logits = np.where(has, logits - logits[:, has].max(1, keepdims=True), -np.inf)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(targets)), targets]
    return float(np.minimum(losses, _WORST).mean())


def best_partners(scores: np.ndarray, uploaded: np.ndarray, count: int) -> np.ndarray:
    """The learners with the best scores for each, (learners, learners), and itself; of equals the first.

    Whoever has not uploaded, or knows no score, uses everybody's uploads.
    """
    scores = np.where(uploaded[None], scores, -np.inf)
    np.fill_diagonal(scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    found = np.eye(len(scores), dtype=bool)
    np.put_along_axis(found, order, np.isfinite(np.take_along_axis(scores, order, 1)), axis=1)
    np.fill_diagonal(found, True)
    found[~np.isfinite(scores).any(1) | ~uploaded] = True
    return found


def found_groups(chosen: np.ndarray) -> np.ndarray:
    """The group of each learner: those that chosen partners connect, where both chose each other."""
    return np.asarray(connected_components(chosen & chosen.T, directed=False)[1])


def record_partners(run: RunState, record: Record) -> None:
    """Record how well the chosen partners show the groups that learners belong to (adjusted Rand index)."""
    groups = run.setup.partners.groups
    if run.chosen is None or groups is None:
        return
    for f, chosen in enumerate(run.chosen):
        if chosen.any():
            record["partners_rand"][f] = adjusted_rand_score(groups, found_groups(chosen))


def _held_out_features(run: RunState) -> list[list[tuple[np.ndarray, np.ndarray] | None]]:
    """Features and targets of every learner's validation samples by federation and learner; None where it has none."""
    federations, learners = run.setup.federations.shape
    found: list[list[tuple[np.ndarray, np.ndarray] | None]] = [[None] * learners for _ in range(federations)]
    for cohort in range(len(run.learners)):
        members, at = run.engine.plans[cohort].members, run.at(cohort)
        assert members.validation is not None
        rows = np.flatnonzero([len(samples) > 0 for samples in members.validation])
        jobs: list[Job] = [Represent(cohort, some) for some in run.engine.split(Represent, cohort, rows)]
        for job, result in run.engine.run(jobs):
            for row, features in zip(job.rows, result.features, strict=True):
                targets = run.setup.data.train.targets[members.validation[row]]
                found[at[0][row]][at[1][row]] = features.astype(np.float64), targets
    return found
