"""How useful uploads of others are to a learner: how well their class means predict its validation samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.channels import EntryPool
from consilience.randomness import uniform
from consilience.simulation.engines.jobs import Job, Represent
from consilience.simulation.federation import Federation
from consilience.simulation.round.run_state import RunState

HeldOut = tuple[np.ndarray, np.ndarray] | None
"""Features and targets of a learner's validation samples; None where it has none."""
_WORST = float(-np.log(1e-6))  # the loss of a sample whose class a learner does not know


def entry_losses(
    federation: Federation, name: str, readers: np.ndarray, held: Sequence[HeldOut], *when: int
) -> np.ndarray:
    """The loss of every entry of a pool on each reader's validation samples, (readers, entries).

    held: of all learners. A reader without validation samples gets random entries: its losses are random numbers.
    """
    channel = federation.channels[name]
    assert isinstance(channel, EntryPool)
    means, counts = (x.numpy(force=True) for x in (channel.values["mean"], channel.weights))
    means, counts = (x.reshape(-1, *x.shape[2:]) for x in (means, counts))  # (entries, classes, width), and counts
    mine = [held[reader] for reader in readers]
    losses = -usefulness(means, counts, mine, federation.dimensions(name, means.shape[2]))
    chance = uniform("useful entries", federation.seed, *when, readers[:, None], np.arange(len(means))[None])
    return np.where(np.array([each is None for each in mine])[:, None], chance, losses)


def usefulness(
    means: np.ndarray, counts: np.ndarray, held: Sequence[HeldOut], dimensions: np.ndarray | slice = slice(None)
) -> np.ndarray:
    """How well the class means of upload j predict learner i's validation samples, (learners, uploads).

    It is the negative mean cross-entropy of the classes by squared distance to their means, relative to the mean
    distance; -infinity for all where a learner has no samples. means: (uploads, classes, width); counts: (uploads,
    classes). dimensions: those of the features, and of the means, that are shared.
    """
    scores, has = np.full((len(held), len(means)), -np.inf), counts > 0
    means = means[:, :, dimensions].astype(np.float64)
    for i, mine in enumerate(held):
        if mine is None:
            continue
        features, targets = mine
        for j in np.flatnonzero(has.any(1)):
            scores[i, j] = -_loss_of_means(features[:, dimensions], targets, means[j], has[j])
    return scores


def _loss_of_means(features: np.ndarray, targets: np.ndarray, means: np.ndarray, has: np.ndarray) -> float:
    distances = ((features[:, None] - means[None]) ** 2).sum(2)  # (samples, classes)
    logits = -distances / max(float(distances[:, has].mean()), 1e-12)
    logits = np.where(has, logits - logits[:, has].max(1, keepdims=True), -np.inf)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(targets)), targets]
    return float(np.minimum(losses, _WORST).mean())


def held_out_features(run: RunState) -> list[list[HeldOut]]:
    """Features and targets of every learner's validation samples by federation and learner; None where it has none."""
    federations, learners = run.setup.federations.shape
    found: list[list[HeldOut]] = [[None] * learners for _ in range(federations)]
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
