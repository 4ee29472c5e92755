"""Who was in a mean: whether samples that it was formed of can be told from others by how near to it they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.errors import ConfigurationError, TrainingError


@dataclass(frozen=True)
class Membership:
    """How well members are told from others.

    auc: how often a member is nearer than another, ties counting half; 0.5 is chance, 1 every time.
    advantage: the most by which the share of members within a distance exceeds that of others; 0 is none at all.
    threshold: that distance, the smallest where several do.
    """

    auc: float
    advantage: float
    threshold: float


def membership(distances_in: np.ndarray, distances_out: np.ndarray) -> Membership:
    """How well samples' distances to a mean tell members (distances_in) from others (distances_out).

    The threshold is chosen with the answers known, so an advantage above 0 comes of chance, too: compare it with that
    of distances shuffled between the two.

        >>> membership(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
        Membership(auc=0.875, advantage=0.5, threshold=1.0)
    """
    members, others = _sorted("members", distances_in), _sorted("others", distances_out)
    nearer = np.searchsorted(others, members, "left"), np.searchsorted(others, members, "right")  # strictly, and tied
    auc = 1 - (nearer[0].mean() + nearer[1].mean()) / (2 * len(others))
    candidates = np.union1d(members, others)  # at the last everybody is taken for a member: no advantage
    inside, outside = (np.searchsorted(side, candidates, "right") for side in (members, others))
    # Whole numbers: shares would differ by rounding where they are the same.
    gains = inside * len(others) - outside * len(members)
    best = int(gains.argmax())
    return Membership(float(auc), float(gains[best] / (len(members) * len(others))), float(candidates[best]))


def _sorted(who: str, distances: np.ndarray) -> np.ndarray:
    """In order, in float64; refused where there are none, or where one is no number."""
    values = np.sort(np.asarray(distances, dtype=np.float64).ravel())
    if not len(values):
        raise ConfigurationError(f"there are no distances of {who}; give those of 1 or more")
    if bad := int(np.isnan(values).sum()):
        raise TrainingError(
            f"{bad} of {len(values)} distances of {who} are no numbers; look at the training that made the features"
        )
    return values
