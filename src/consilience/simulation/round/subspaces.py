"""The feature dimensions that learners share in a round, where they are others in every round.

All learners work them out alike, from the federation's seed, the round and the class means downloaded last, so that
uploads and answers need not name them. Uploads of earlier rounds have other dimensions, and do not count any longer.
"""

from __future__ import annotations

import numpy as np

from consilience.randomness import uniform
from consilience.simulation.federation import Federation
from consilience.simulation.records.round_record import Record
from consilience.simulation.round.participation import Presence, draw_presence
from consilience.simulation.round.run_state import RunState
from consilience.simulation.setup.subspaces import SubspacePlan


def set_subspaces(run: RunState) -> None:
    """Decide which dimensions are shared in this round, before its uploads, and remove those of earlier rounds."""
    for federation in run.federations:
        if federation.subspace is not None:
            federation.share_only(_shared(federation, federation.subspace, run.round), run.round)


def _shared(federation: Federation, plan: SubspacePlan, round_: int) -> np.ndarray:
    """Whether each dimension is shared in a round, (width,)."""
    if plan.kind == "random":
        return random_dimensions(plan.width, plan.count, federation.seed, round_)
    if round_ == 0:
        return np.arange(plan.width) < plan.count
    answer, _ = federation.answers(plan.means, np.array([0]), round_)
    means, count = (x[0].numpy(force=True) for x in (answer.tensors["mean"], answer.count))
    before = federation.shared.numpy(force=True) > 0
    return renewed_dimensions(before, variance_between(means, count), federation.seed, round_)


def random_dimensions(width: int, count: int, seed: int, round_: int) -> np.ndarray:
    """`count` random dimensions of a round, as (width,) true and false: the same for all learners."""
    return _first(uniform("dimensions", seed, round_, np.arange(width)), count)


def renewed_dimensions(shared: np.ndarray, variance: np.ndarray, seed: int, round_: int) -> np.ndarray:
    """The half of the shared dimensions with the largest variance, and as many random others as the rest were.

    Of dimensions that were not shared no mean is known: if all that are shared were chosen by their variance, they
    would stay the same for ever.
    """
    count = int(shared.sum())
    kept = _first(np.where(shared, -variance, np.inf), count // 2)
    chance = np.where(kept, np.inf, uniform("dimensions", seed, round_, np.arange(len(shared))))
    found: np.ndarray = kept | _first(chance, count - count // 2)
    return found


def variance_between(means: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The variance of each dimension between the class means (classes, width) that are known, (width,)."""
    known = means[count > 0].astype(np.float64)
    return known.var(axis=0) if len(known) else np.zeros(means.shape[1])


def _first(order: np.ndarray, count: int) -> np.ndarray:
    """True at the `count` places with the smallest numbers; of equals, the first."""
    found = np.zeros(len(order), dtype=bool)
    found[np.argsort(order, kind="stable")[:count]] = True
    return found


def record_dimensions_sent(run: RunState, presence: Presence, record: Record) -> None:
    """Count one bit per dimension for those who cannot know which are shared: they lack the class means of last round.

    Random dimensions are known to everybody.
    """
    if not any(each.subspace is not None and each.subspace.kind == "top-variance" for each in run.federations):
        return
    last = draw_presence(run.setup.federations, run.setup.method.host, run.round - 1).exchanges
    had_means = last if run.round > 1 else np.broadcast_to(run.setup.federations.joined(0), last.shape)
    for i, learner in enumerate(run.learners):
        f, who = run.at(i)
        for k in range(len(f)):
            plan = run.federations[f[k]].subspace
            if plan is None or plan.kind != "top-variance" or not presence.exchanges[f[k], who[k]]:
                continue
            if not (had_means[f[k], who[k]] and plan.means in learner.receiving):
                record["bytes.down"][f[k], who[k]] += -(-plan.width // 8)
