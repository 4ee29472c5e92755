"""Choosing partners by what learners upload: the most similar class means, or those most useful for validation."""

from __future__ import annotations

import numpy as np

from consilience.channels import StandingMean
from consilience.simulation.records.round_record import Record
from consilience.simulation.round.run_state import RunState
from consilience.simulation.round.usefulness import held_out_features, usefulness


def choose_partners(run: RunState) -> None:
    """Choose every learner's partners by the class means that are uploaded now."""
    plan = run.setup.partners
    assert run.chosen is not None
    held = held_out_features(run) if plan.partners.kind == "useful" else None
    for f, federation in enumerate(run.federations):
        channel = federation.channels[plan.compared]
        assert isinstance(channel, StandingMean)
        means, counts = channel.values["mean"].numpy(force=True), channel.weights.numpy(force=True)
        if held is None:
            scores = similarities(means, counts)
        else:
            scores = usefulness(means, counts, held[f], federation.dimensions(plan.compared, means.shape[2]))
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
    from scipy.sparse.csgraph import connected_components  # runs without partners need neither it nor scikit-learn

    return np.asarray(connected_components(chosen & chosen.T, directed=False)[1])


def record_partners(run: RunState, record: Record) -> None:
    """Record how well the chosen partners show the groups that learners belong to (adjusted Rand index)."""
    groups = run.setup.partners.groups
    if run.chosen is None or groups is None:
        return
    from sklearn.metrics import adjusted_rand_score

    for f, chosen in enumerate(run.chosen):
        if chosen.any():
            record["partners_rand"][f] = adjusted_rand_score(groups, found_groups(chosen))
