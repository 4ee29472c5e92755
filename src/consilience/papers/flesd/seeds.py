"""Which seeds FLESD's experiments use: a rule about sizes of data alone, so that no accuracy decides.

At alpha 0.01 many seeds leave a learner two images, or the public set, which is learner 0's data, a few of one class.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from consilience.data import partition_samples
from consilience.randomness import seed_of

LEAST_SHARE = 20
"""Every learner must have at least one image of this many: 1,000 of 20,000."""


def smallest_learner(targets: NDArray[np.int64], learners: int, alpha: float, seed: int) -> int:
    """How many images the smallest learner has in a run with this seed."""
    generator = np.random.default_rng(seed_of("partition", seed))
    return min(map(len, partition_samples(targets, learners, f"dirichlet({alpha:g})", generator)))


def seeds_by_rule(targets: NDArray[np.int64], learners: int, alphas: Sequence[float], wanted: int) -> list[int]:
    """The first seeds from 0 on with which every learner has at least a twentieth of all images, at every alpha."""
    least = len(targets) // LEAST_SHARE
    found = (
        seed for seed in count() if all(smallest_learner(targets, learners, alpha, seed) >= least for alpha in alphas)
    )
    return list(islice(found, wanted))
