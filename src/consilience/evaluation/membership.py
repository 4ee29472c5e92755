"""Membership inference: whether the distance of a sample to a mean reveals that the mean was computed from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.errors import ConfigurationError, TrainingError


@dataclass(frozen=True)
class Membership:
    """How well members are distinguished from non-members.

    auc: the probability that a member is nearer than a non-member, ties counting half; 0.5 is chance.
    advantage: the largest difference between the shares of members and of non-members within a distance; 0 is none.
    threshold: this distance, the smallest if there are several.
    """

    auc: float
    advantage: float
    threshold: float


def infer_membership(distances_in: np.ndarray, distances_out: np.ndarray) -> Membership:
    """How well the distances of samples to a mean distinguish members (distances_in) from others (distances_out).

    The threshold is chosen with the true memberships, so chance alone gives an advantage above 0: compare it with that
    of distances shuffled between the two.

        >>> infer_membership(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
        Membership(auc=0.875, advantage=0.5, threshold=1.0)
    """
    members, others = _sorted("members", distances_in), _sorted("others", distances_out)
    nearer = (
        np.searchsorted(others, members, "left"),
        np.searchsorted(others, members, "right"),
    )  # strictly nearer, and tied
    auc = 1 - (nearer[0].mean() + nearer[1].mean()) / (2 * len(others))
    candidates = np.union1d(members, others)  # at the largest all count as members: no advantage
    inside, outside = (np.searchsorted(side, candidates, "right") for side in (members, others))
    # Integers: equal shares could differ by rounding.
    gains = inside * len(others) - outside * len(members)
    best = int(gains.argmax())
    return Membership(float(auc), float(gains[best] / (len(members) * len(others))), float(candidates[best]))


def _sorted(who: str, distances: np.ndarray) -> np.ndarray:
    """Sorted and in float64; an error if there are none, or if one is NaN."""
    values = np.sort(np.asarray(distances, dtype=np.float64).ravel())
    if not len(values):
        raise ConfigurationError(f"there are no distances of {who}; give those of 1 or more")
    if bad := int(np.isnan(values).sum()):
        raise TrainingError(f"{bad} of {len(values)} distances of {who} are NaN; check the training of the model")
    return values
